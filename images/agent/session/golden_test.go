package session

import (
	"testing"

	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/dial"
	"exec-sandbox/agent/files"
	"exec-sandbox/agent/test"
)

func TestGolden(t *testing.T) {
	golden := test.Golden(t)
	test.Holds(t, golden.Hello, &greeted{})
	if _, err := parseHello(golden.Hello); err != nil {
		t.Error(err)
	}
	test.Same(t, golden.GuestHello, &greeting{})
	for _, message := range golden.Of(t, "network").Requests {
		test.Holds(t, message, &network{})
		if _, err := decodeNetwork(message); err != nil {
			t.Error(err)
		}
	}
	for method, examples := range golden.Methods {
		if method == "connect" || method == "output" {
			continue // the guest's own
		}
		own := method == "exec" || method == "spawn" || method == "network" || method == "seal"
		if !own && !changes.Serves(method) && !files.Serves(method) && !dial.Serves(method) {
			t.Errorf("no package serves %s", method)
		}
		for _, message := range examples.Requests {
			if got, err := methodOf(message); got != method || err != nil {
				t.Errorf("%s: got %q, %v", message, got, err)
			}
		}
	}
}
