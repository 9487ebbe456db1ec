package interpreter

import (
	"encoding/json"
	"reflect"
	"testing"

	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/test"
)

func TestGolden(t *testing.T) {
	exec := test.Golden(t).Of(t, "exec")
	for _, message := range exec.Requests {
		test.Holds(t, message, &Request{})
		// The quick decoder reads what the full one does.
		got, err := Decode(message)
		if err != nil {
			t.Fatalf("%s: %v", message, err)
		}
		want := &Request{}
		if err := json.Unmarshal(message, want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as %+v", message, got)
		}
	}
	for _, message := range exec.Ends {
		test.Same(t, message, &evidence.Evidence{})
	}
}
