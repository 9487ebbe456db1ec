package process

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDecode(t *testing.T) {
	const argv = `{"method":"spawn","argv":["a","b c",""],"user":"user"}`
	r, err := Decode([]byte(argv))
	if err != nil || strings.Join(r.Argv, "|") != "a|b c|" || r.timeout() != nil || r.Pty != nil {
		t.Fatalf("got %+v, %v", r, err)
	}
	r, err = Decode([]byte(`{"shell":"x; y","user":"root","cwd":"/","env":{"A":"b"},"pty":{"cols":1,"rows":10000},"timeMs":5}`))
	if err != nil || strings.Join(r.Argv, "|") != "/bin/bash|-c|x; y" || r.Pty.Rows != 10000 || r.timeout().Milliseconds() != 5 {
		t.Fatalf("got %+v, %v", r, err)
	}
	for name, more := range map[string]string{
		"both":           `"shell":"x"`,
		"no argv":        `"argv":null`,
		"empty argv":     `"argv":[]`,
		"NUL":            `"argv":["a\u0000"]`,
		"relative cwd":   `"cwd":"tmp"`,
		"NUL in cwd":     `"cwd":"/a\u0000"`,
		"name":           `"env":{"A=B":""}`,
		"empty name":     `"env":{"":"x"}`,
		"value":          `"env":{"A":"\u0000"}`,
		"user":           `"user":"nobody"`,
		"no columns":     `"pty":{"cols":0,"rows":1}`,
		"too many rows":  `"pty":{"cols":1,"rows":10001}`,
		"no time":        `"timeMs":0`,
		"negative limit": `"memoryBytes":-1`,
		"no processes":   `"processes":0`,
		"type":           `"argv":"x"`,
	} {
		if _, err := Decode([]byte(strings.TrimSuffix(argv, "}") + "," + more + "}")); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestParseOrder(t *testing.T) {
	o, err := parseOrder([]byte(`{"event":"signal","signal":"SIGTERM"}`))
	if err != nil || o.Event != "signal" || o.signal() != unix.SIGTERM {
		t.Errorf("got %+v, %v", o, err)
	}
	o, err = parseOrder([]byte(`{"event":"resize","cols":132,"rows":50}`))
	if err != nil || o.size != (size{132, 50}) || o.signal() != 0 {
		t.Errorf("got %+v, %v", o, err)
	}
}
