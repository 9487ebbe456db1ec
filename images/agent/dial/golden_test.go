package dial

import (
	"testing"

	"exec-sandbox/agent/test"
)

func TestGolden(t *testing.T) {
	for _, method := range []string{"dial", "listening"} {
		for _, message := range test.Golden(t).Of(t, method).Requests {
			test.Holds(t, message, &Request{})
			if r, err := Decode(message); err != nil || r.Method != method {
				t.Errorf("%s is read as %+v, %v", message, r, err)
			}
		}
	}
}
