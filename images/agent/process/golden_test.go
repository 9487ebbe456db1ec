package process

import (
	"testing"

	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/test"
)

func TestGolden(t *testing.T) {
	spawn := test.Golden(t).Of(t, "spawn")
	for _, message := range spawn.Requests {
		test.Holds(t, message, &Request{})
		if _, err := Decode(message); err != nil {
			t.Errorf("%s: %v", message, err)
		}
	}
	for _, message := range spawn.Orders {
		test.Holds(t, message, &order{})
		o, err := parseOrder(message)
		if err != nil || o.Event == "signal" && o.signal() == 0 || o.Event == "resize" && o.check() != nil {
			t.Errorf("%s is read as %+v, %v", message, o, err)
		}
	}
	for _, message := range spawn.Ends {
		test.Same(t, message, &evidence.Evidence{})
	}
}
