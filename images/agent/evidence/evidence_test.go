package evidence

import (
	"bytes"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/program"
)

func TestEvidenceOfAnInterpreter(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"plain", `{"exitCode":3,"exception":null,"commands":[],"result":null}`, `3 null [] null`},
		{"absent fields", `{}`, `-1 null [] null`},
		{"everything", `{"exitCode":1,"exception":{"type":"E"},"commands":[{"name":"foo"}],"result":{"repr":"3"}}`, `1 {"type":"E"} [{"name":"foo"}] {"repr":"3"}`},
		{"more than a frame", `{"exitCode":0,"result":"` + strings.Repeat("x", channel.MaxPayload) + `"}`, `0 null [] null`},
	}
	for _, c := range cases {
		e, err := Parse([]byte(c.text))
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
		if _, err := Parse([]byte(bad)); err == nil {
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
		e := &Evidence{}
		e.FromStatus(c.status)
		signal := ""
		if e.Signal != nil {
			signal = *e.Signal
		}
		if *e.ExitCode != c.code || signal != c.signal {
			t.Errorf("status %#x: got %d %q, want %d %q", uint32(c.status), *e.ExitCode, signal, c.code, c.signal)
		}
	}
}

func TestLimitsThatWereHit(t *testing.T) {
	quiet := cgroup.Counters{CPUMicros: 1000, PeakBytes: 5, MaxBytes: 100, MaxTasks: 64}
	cases := []struct {
		name  string
		after func(*cgroup.Counters)
		want  string
	}{
		{"none", func(*cgroup.Counters) {}, `null`},
		{"memory", func(c *cgroup.Counters) { c.OOMKills++; c.PeakBytes = 99 }, `[{"limit":"memory","allowed":100,"observed":99}]`},
		{"memory, peak unknown", func(c *cgroup.Counters) { c.OOMKills++; c.PeakBytes = -1 }, `[{"limit":"memory","allowed":100,"observed":100}]`},
		{"processes", func(c *cgroup.Counters) { c.TasksAtMax += 3 }, `[{"limit":"processes","allowed":64,"observed":64}]`},
		{"nothing is known", func(c *cgroup.Counters) { *c = cgroup.Unknown }, `null`},
	}
	for _, c := range cases {
		after := quiet
		c.after(&after)
		e := &Evidence{}
		e.Count(quiet, after)
		if got, _ := json.Marshal(e.Limits); string(got) != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestUsageThatIsUnknownIsNull(t *testing.T) {
	e := &Evidence{}
	unknown := cgroup.Unknown
	e.Count(unknown, unknown)
	if got, _ := json.Marshal(e.Usage); string(got) != `{"cpuMs":null,"peakMemoryBytes":null,"wallMs":0}` {
		t.Errorf("got %s", got)
	}
}

// AppendJSON must write what encoding/json would.
func TestEvidenceIsItsJSON(t *testing.T) {
	code, signal, path, cpu, peak := 137, "SIGKILL", "/x/1.stdout", 12.345, int64(1<<40)
	plain := Evidence{State: "kept"}
	plain.Fill()
	full := Evidence{
		ExitCode: &code, Signal: &signal, Exception: []byte(`{"type":"é<&>"}`), Commands: []byte(`[{"name":"x"}]`),
		Limits: []Hit{{"time", 30000, 30012}, {"memory", 1, -1}}, State: "reset", Result: []byte(`{"repr":"3","json":3}`),
		Usage: usage{CPUMs: &cpu, PeakMemoryBytes: &peak, WallMs: 0.001}, Rest: &Rest{Stdout: &path},
		Changes: &changes.Summary{Created: 2},
	}
	for _, e := range []Evidence{plain, full} {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(e); err != nil {
			t.Fatal(err)
		}
		if got := string(e.AppendJSON(nil)) + "\n"; got != out.String() {
			t.Errorf("got %s, want %s", got, out.String())
		}
	}
}

// usual must read what encoding/json would.
func TestUsualEvidence(t *testing.T) {
	e := &Evidence{}
	if !e.usual([]byte(`{"exitCode":3,"exception":null,"commands":[],"result":null}`)) || *e.ExitCode != 3 {
		t.Errorf("got %+v", e)
	}
	if e = (&Evidence{}); !e.usual([]byte("130")) || *e.ExitCode != 130 {
		t.Errorf("got %+v", e)
	}
	for _, bad := range []string{"-1", "1.5", "256", "1000", "[]", "0x1"} {
		if (&Evidence{}).usual([]byte(bad)) {
			t.Errorf("taken for an exit code: %s", bad)
		}
	}
	if (&Evidence{}).usual([]byte(`{"exitCode":0,"exception":null,"commands":[],"result":{"repr":"1"}}`)) {
		t.Error("a result is taken for none")
	}
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		failure program.Failure
		known   bool
		code    int
	}{
		{program.Failure{Kind: program.NotFound, Errno: "ENOENT"}, true, 127},
		{program.Failure{Kind: program.NotExecutable, Errno: "ENOENT", Path: "/x"}, true, 127},
		{program.Failure{Kind: program.NotExecutable, Errno: "ENOEXEC", Path: "/x"}, true, 126},
		{program.Failure{Kind: program.NotPermitted, Errno: "EACCES", Path: "/x"}, true, 126},
		{program.Failure{Kind: program.NotEntered, Errno: "EACCES", Path: "/x"}, true, 126},
		{program.Failure{Kind: program.NotEntered, Errno: "ENOENT", Path: "/x"}, false, 0},
		{program.Failure{Kind: program.TooLarge}, false, 0},
	} {
		e := &Evidence{}
		e.FromStatus(syscall.WaitStatus(0))
		f := c.failure
		if known := e.Explain("x", &f); known != c.known || known && *e.ExitCode != c.code {
			t.Errorf("%+v: got %v, %d", f, known, *e.ExitCode)
		}
	}
}
