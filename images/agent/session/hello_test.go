package session

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

const good = `{"protocol":1,"purpose":"session","clock":"1700000000000000007","entropy":"ENTROPY",
 "hostname":"sbx-3f9a1c2e","machineId":"0123456789abcdef0123456789abcdef","env":{"K":"V"},"limits":{"memoryBytes":536870912,"processes":256}}`

func TestGreetingIsItsJSON(t *testing.T) {
	for _, g := range []greeting{
		{Protocol: 1, Ready: true, Languages: []string{}, Kernel: "6.12", Agent: "0.1.0"},
		{Protocol: 1, Ready: true, Languages: []string{"python", "bash"}, Acknowledged: &acknowledged{Clock: true, Env: true, Limits: true}},
	} {
		want, err := json.Marshal(g)
		if got := string(g.AppendJSON(nil)); err != nil || got != string(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// usual must read what encoding/json would.
func TestUsualHello(t *testing.T) {
	text := strings.ReplaceAll(strings.Replace(strings.Replace(good, "ENTROPY", strings.Repeat("0f", 64), 1), `{"K":"V"}`, "{}", 1), "\n ", "")
	var quick, thorough greeted
	if !quick.usual([]byte(text)) || json.Unmarshal([]byte(text), &thorough) != nil {
		t.Fatal("not understood")
	}
	thorough.Env = nil
	if !reflect.DeepEqual(quick, thorough) {
		t.Errorf("got %+v, want %+v", quick, thorough)
	}
	if (&greeted{}).usual([]byte(strings.Replace(text, "{}", `{"K":"V"}`, 1))) {
		t.Error("an environment is taken for none")
	}
}

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
