package changes

import (
	"testing"

	"exec-sandbox/agent/test"
)

func TestGolden(t *testing.T) {
	golden := test.Golden(t)
	for _, method := range []string{"changes.mark", "changes.read"} {
		for _, message := range golden.Of(t, method).Requests {
			test.Holds(t, message, &Request{})
			if _, err := Decode(message); err != nil || !Serves(method) {
				t.Errorf("%s: %v", message, err)
			}
		}
	}
	for _, message := range golden.Of(t, "changes.read").Ends {
		test.Same(t, message, &Summary{})
	}
	test.Same(t, golden.Lines["change"], &line{})
}
