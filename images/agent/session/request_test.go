package session

import (
	"encoding/json"
	"errors"
	"testing"

	"exec-sandbox/agent/interpreter"
)

func TestMethodOf(t *testing.T) {
	for payload, want := range map[string]string{
		`{"method":"exec","language":"python"}`: "exec",
		`{"method":"file.read","path":"a"}`:     "file.read",
		`{"path":"a","method":"file.read"}`:     "file.read",
		`{"method":"\u0065xec"}`:                "exec",
		` {"method" : "seal"}`:                  "seal",
		`{}`:                                    "",
	} {
		if got, err := methodOf([]byte(payload)); got != want || err != nil {
			t.Errorf("%s: got %q, %v", payload, got, err)
		}
	}
	var syntax *json.SyntaxError
	for payload, broken := range map[string]bool{``: true, `{`: true, `{"method":"seal`: true, `{"method":7}`: false, `[]`: false} {
		if _, err := methodOf([]byte(payload)); err == nil || errors.As(err, &syntax) != broken {
			t.Errorf("%s: got %v", payload, err)
		}
	}
}

// What decoding costs each execution.
func BenchmarkExec(b *testing.B) {
	payload := []byte(`{"method":"exec","language":"python","codeBytes":8,"stdinBytes":0,"cwd":"/tmp","timeMs":30000,` +
		`"memoryBytes":1048576,"outputBytes":1048576,"spill":true}`)
	b.ReportAllocs()
	for n := 0; n < b.N; n++ {
		if method, err := methodOf(payload); method != "exec" || err != nil {
			b.Fatal(method, err)
		}
		if _, err := interpreter.Decode(payload); err != nil {
			b.Fatal(err)
		}
	}
}
