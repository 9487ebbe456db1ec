package interpreter

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/evidence"
)

// The quick way must read what the thorough one reads.
func TestUsualRequests(t *testing.T) {
	text := `{"method":"exec","language":"python","codeBytes":8,"stdinBytes":0,"cwd":"/tmp","timeoutMs":30000,"memoryBytes":1048576,` +
		`"outputBytes":1048576,"keep":true,"rehearsal":true}`
	var quick, thorough Request
	if !quick.usual([]byte(text)) || json.Unmarshal([]byte(text), &thorough) != nil {
		t.Fatal("not understood")
	}
	if !reflect.DeepEqual(quick, thorough) {
		t.Errorf("got %+v, want %+v", quick, thorough)
	}
	for _, other := range []string{
		strings.Replace(text, `"keep":true`, `"env":{"A":"1"}`, 1),
		strings.Replace(text, `"exec"`, `"spawn"`, 1),
		strings.Replace(text, `"keep"`, `"Keep"`, 1),
		strings.Replace(text, `8`, `"8"`, 1),
	} {
		if (&Request{}).usual([]byte(other)) {
			t.Errorf("taken for usual: %s", other)
		}
	}
	if r, err := ParseRequest([]byte(strings.Replace(text, `"keep":true`, `"env":{"A":"1"}`, 1))); err != nil || r.Env["A"] != "1" || *r.CodeBytes != 8 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestTimeLimitThatWasMet(t *testing.T) {
	timeout := int64(500)
	x := execution{request: &Request{TimeoutMs: &timeout}, started: true, timedOut: true, began: time.Now().Add(-time.Second)}
	e := &evidence.Evidence{}
	x.measure(e, cgroup.Counters{})
	if len(e.Limits) != 1 || e.Limits[0].Allowed != 500 || e.Limits[0].Observed < 1000 {
		t.Errorf("time: got %+v", e.Limits)
	}
}
