package session

import (
	"strings"
	"testing"
	"time"
)

const good = `{"protocol":1,"purpose":"session","clock":"1700000000000000007","entropy":"ENTROPY",
 "hostname":"sbx-3f9a1c2e","machineId":"0123456789abcdef0123456789abcdef","env":{"K":"V"},"limits":{"memoryBytes":536870912,"processes":256}}`

func TestParseHello(t *testing.T) {
	text := strings.Replace(good, "ENTROPY", strings.Repeat("0f", 64), 1)
	h, err := parseHello([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !h.clock.Equal(time.Unix(1700000000, 7)) || len(h.entropy) != 64 || h.entropy[63] != 0x0f || h.purpose != "session" ||
		h.hostname != "sbx-3f9a1c2e" || h.env["K"] != "V" || h.memoryBytes != 536870912 || h.processes != 256 {
		t.Errorf("got %+v", h)
	}
	for name, change := range map[string][2]string{
		"protocol":         {`"protocol":1`, `"protocol":2`},
		"purpose":          {`"session"`, `"other"`},
		"clock":            {`"1700000000000000007"`, `"now"`},
		"short entropy":    {`"0f`, `"`},
		"entropy, not hex": {`"0f`, `"zz`},
		"variable's name":  {`"K"`, `"K="`},
		"variable's value": {`"V"`, `"V\u0000"`},
		"negative limit":   {`256`, `-1`},
		"type":             {`"sbx-3f9a1c2e"`, `7`},
	} {
		bad := strings.Replace(text, change[0], change[1], 1)
		if bad == text {
			t.Fatalf("%s changes nothing", name)
		}
		if _, err := parseHello([]byte(bad)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
