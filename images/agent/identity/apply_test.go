package identity

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "sbx-3f9a1c2e": true, "A-9": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "a-": false, "a.b": false, "a_b": false, "é": false, "a\n": false, strings.Repeat("a", 64): false,
	} {
		if isHostname(name) != want {
			t.Errorf("host name %q: %v", name, !want)
		}
	}
	for id, want := range map[string]bool{
		strings.Repeat("0f", 16): true, strings.Repeat("0F", 16): false, strings.Repeat("0f", 15): false, strings.Repeat("0g", 16): false, "": false,
	} {
		if isMachineID(id) != want {
			t.Errorf("machine id %q: %v", id, !want)
		}
	}
}
