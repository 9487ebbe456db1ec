package interpreter

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// usual must read what encoding/json would.
func TestUsualRequests(t *testing.T) {
	text := `{"method":"exec","language":"python","codeBytes":8,"stdinBytes":0,"cwd":"/tmp","timeMs":30000,"memoryBytes":1048576,` +
		`"outputBytes":1048576,"spill":true,"rehearsal":true}`
	var quick, thorough Request
	if !quick.usual([]byte(text)) || json.Unmarshal([]byte(text), &thorough) != nil {
		t.Fatal("not understood")
	}
	if !reflect.DeepEqual(quick, thorough) {
		t.Errorf("got %+v, want %+v", quick, thorough)
	}
	for _, other := range []string{
		strings.Replace(text, `"spill":true`, `"env":{"A":"1"}`, 1),
		strings.Replace(text, `"exec"`, `"spawn"`, 1),
		strings.Replace(text, `"spill"`, `"Spill"`, 1),
		strings.Replace(text, `8`, `"8"`, 1),
	} {
		if (&Request{}).usual([]byte(other)) {
			t.Errorf("taken for usual: %s", other)
		}
	}
	if r, err := Decode([]byte(strings.Replace(text, `"spill":true`, `"env":{"A":"1"}`, 1))); err != nil || r.Env["A"] != "1" || *r.CodeBytes != 8 {
		t.Errorf("got %+v, %v", r, err)
	}
}
