package cgroup

import "testing"

func TestFields(t *testing.T) {
	text := []byte("usage_usec 1234\nuser_usec 7\nmax 3\n")
	for key, want := range map[string]int64{"usage_usec ": 1234, "max ": 3, "absent ": -1} {
		if got := parseField(text, key); got != want {
			t.Errorf("%q: got %d, want %d", key, got, want)
		}
	}
	if got := parseField([]byte("42\n"), ""); got != 42 {
		t.Errorf("got %d, want 42", got)
	}
}
