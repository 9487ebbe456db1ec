package egress

import (
	"testing"

	"exec-sandbox/agent/test"
)

func TestGolden(t *testing.T) {
	connect := test.Golden(t).Of(t, "connect")
	for _, message := range connect.Requests {
		test.Holds(t, message, &request{})
	}
	for _, message := range connect.Notes {
		test.Holds(t, message, &reply{})
	}
}
