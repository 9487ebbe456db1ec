package run

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"exec-sandbox/agent/channel"
)

func TestEvidenceOfAnInterpreter(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"plain", `{"exitCode":3,"exception":null,"commands":[],"result":null}`, `3 null [] null`},
		{"absent fields", `{}`, `-1 null [] null`},
		{"everything", `{"exitCode":1,"exception":{"type":"E"},"commands":[{"name":"foo"}],"result":{"repr":"3"}}`, `1 {"type":"E"} [{"name":"foo"}] {"repr":"3"}`},
		{"more than a frame", `{"exitCode":0,"result":"` + strings.Repeat("x", channel.MaxPayload) + `"}`, `0 null [] null`},
	}
	for _, c := range cases {
		e, err := parseEvidence([]byte(c.text))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		code := -1
		if e.ExitCode != nil {
			code = *e.ExitCode
		}
		number, _ := json.Marshal(code)
		if got := strings.Join([]string{string(number), string(e.Exception), string(e.Commands), string(e.Result)}, " "); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	for _, bad := range []string{``, `{`, `[]`, `{"exitCode":"x"}`, `{"exitCode":1} trailing`} {
		if _, err := parseEvidence([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestEvidenceOfADeath(t *testing.T) {
	cases := []struct {
		status syscall.WaitStatus
		code   int
		signal string
	}{
		{0, 0, ""},
		{6 << 8, 6, ""},
		{9, 137, "SIGKILL"},
		{11 | 0x80, 139, "SIGSEGV"},
		{40, 168, "SIG40"},
	}
	for _, c := range cases {
		e := &evidence{}
		e.fromStatus(c.status)
		signal := ""
		if e.Signal != nil {
			signal = *e.Signal
		}
		if *e.ExitCode != c.code || signal != c.signal {
			t.Errorf("status %#x: got %d %q, want %d %q", uint32(c.status), *e.ExitCode, signal, c.code, c.signal)
		}
	}
}

func TestLimitsThatWereMet(t *testing.T) {
	timeout := int64(500)
	quiet := counters{cpuMicros: 1000, peakBytes: 5, maxBytes: 100, maxTasks: 64}
	cases := []struct {
		name  string
		after func(*counters)
		want  string
	}{
		{"none", func(*counters) {}, `null`},
		{"memory", func(c *counters) { c.oomKills++; c.peakBytes = 99 }, `[{"limit":"memory","allowed":100,"observed":99}]`},
		{"memory, peak unknown", func(c *counters) { c.oomKills++; c.peakBytes = -1 }, `[{"limit":"memory","allowed":100,"observed":100}]`},
		{"processes", func(c *counters) { c.tasksAtMax += 3 }, `[{"limit":"processes","allowed":64,"observed":64}]`},
		{"nothing is known", func(c *counters) { *c = counters{-1, -1, -1, -1, -1, -1} }, `null`},
	}
	for _, c := range cases {
		after := quiet
		c.after(&after)
		e := &evidence{}
		e.measure(&execution{}, quiet, after)
		if got, _ := json.Marshal(e.Limits); string(got) != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	x := execution{request: &Request{TimeoutMs: &timeout}, started: true, timedOut: true, began: time.Now().Add(-time.Second)}
	e := &evidence{}
	e.measure(&x, quiet, quiet)
	if len(e.Limits) != 1 || e.Limits[0].Allowed != 500 || e.Limits[0].Observed < 1000 {
		t.Errorf("time: got %+v", e.Limits)
	}
}

func TestUsageThatIsUnknownIsNull(t *testing.T) {
	e := &evidence{}
	unknown := counters{-1, -1, -1, -1, -1, -1}
	e.measure(&execution{}, unknown, unknown)
	if got, _ := json.Marshal(e.Usage); string(got) != `{"cpuMs":null,"peakMemoryBytes":null,"wallMs":0}` {
		t.Errorf("got %s", got)
	}
}

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

func TestSettings(t *testing.T) {
	cwd, entropy := "/it's", "00ff"
	s := settings{Language: "python", Env: map[string]string{"B": "2", "A": "1"}, Cwd: &cwd, Sequence: 7}
	text, err := s.encode(false)
	if want := `{"language":"python","env":{"A":"1","B":"2"},"cwd":"/it's","entropy":null,"sequence":7,"stdin":false}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v", text, err)
	}
	code := "<it's>"
	s.Entropy, s.Stdin, s.Code = &entropy, true, &code
	text, err = s.encode(true)
	want := "__exec_sandbox_stdin=1\n__exec_sandbox_code='<it'\\''s>'\n__exec_sandbox_entropy='00ff'\n__exec_sandbox_cwd='/it'\\''s'\n__exec_sandbox_env=( 'A=1' 'B=2' )\n"
	if err != nil || string(text) != want {
		t.Errorf("got %s, %v", text, err)
	}
}
