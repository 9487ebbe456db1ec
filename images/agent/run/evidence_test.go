package run

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

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
	unknown := cgroup.Unknown
	e.measure(&execution{}, unknown, unknown)
	if got, _ := json.Marshal(e.Usage); string(got) != `{"cpuMs":null,"peakMemoryBytes":null,"wallMs":0}` {
		t.Errorf("got %s", got)
	}
}

func TestSettings(t *testing.T) {
	cwd, entropy := "/it's", "00ff"
	s := settings{Language: "python", Env: map[string]string{"B": "2", "A": "1"}, Cwd: &cwd}
	text := s.encode(nil, false)
	if want := "python\x00\x00\x00/it's\x002\x00A=1\x00B=2\x00"; string(text) != want {
		t.Errorf("got %q", text)
	}
	s.Entropy, s.Stdin, s.Code, s.Rehearsal = &entropy, true, []byte("<it's>"), true
	text = s.encode(nil, false)
	if want := "python\x00src\x0000ff\x00/it's\x002\x00A=1\x00B=2\x00<it's>"; string(text) != want {
		t.Errorf("got %q", text)
	}
	text = s.encode(nil, true)
	want := "__exec_sandbox_stdin=1\n__exec_sandbox_code='<it'\\''s>'\n__exec_sandbox_entropy='00ff'\n__exec_sandbox_cwd='/it'\\''s'\n__exec_sandbox_env=( 'A=1' 'B=2' )\n"
	if string(text) != want {
		t.Errorf("got %s", text)
	}
}

// What the evidence writes by itself must be what its fields' tags say.
func TestEvidenceIsItsJSON(t *testing.T) {
	code, signal, path, cpu, peak := 137, "SIGKILL", "/x/1.stdout", 12.345, int64(1<<40)
	plain := evidence{State: "kept"}
	plain.fill()
	full := evidence{
		ExitCode: &code, Signal: &signal, Exception: []byte(`{"type":"é<&>"}`), Commands: []byte(`[{"name":"x"}]`),
		Limits: []limitHit{{"time", 30000, 30012}, {"memory", 1, -1}}, State: "reset", Result: []byte(`{"repr":"3","json":3}`),
		Usage: usage{CPUMs: &cpu, PeakMemoryBytes: &peak, WallMs: 0.001}, Rest: &rest{Stdout: &path},
		Changes: &changes.Summary{Created: 2},
	}
	for _, e := range []evidence{plain, full} {
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

// The quick way must read what the thorough one reads.
func TestUsualRequestsAndEvidence(t *testing.T) {
	text := `{"method":"exec","language":"python","codeBytes":8,"stdinBytes":0,"cwd":"/tmp","timeoutMs":30000,"memoryBytes":1048576,` +
		`"outputBytes":1048576,"keep":true,"rehearsal":true}`
	var quick, thorough Request
	if !quick.usual([]byte(text)) || json.Unmarshal([]byte(text), &thorough) != nil {
		t.Fatal("not understood")
	}
	if !reflect.DeepEqual(quick, thorough) {
		t.Errorf("got %+v, want %+v", quick, thorough)
	}
	for _, other := range []string{
		strings.Replace(text, `"keep":true`, `"env":{"A":"1"}`, 1),
		strings.Replace(text, `"exec"`, `"spawn"`, 1),
		strings.Replace(text, `"keep"`, `"Keep"`, 1),
		strings.Replace(text, `8`, `"8"`, 1),
	} {
		if (&Request{}).usual([]byte(other)) {
			t.Errorf("taken for usual: %s", other)
		}
	}
	if r, err := ParseRequest([]byte(strings.Replace(text, `"keep":true`, `"env":{"A":"1"}`, 1))); err != nil || r.Env["A"] != "1" || *r.CodeBytes != 8 {
		t.Errorf("got %+v, %v", r, err)
	}
	e := &evidence{}
	if !e.usual([]byte(`{"exitCode":3,"exception":null,"commands":[],"result":null}`)) || *e.ExitCode != 3 {
		t.Errorf("got %+v", e)
	}
	if e = (&evidence{}); !e.usual([]byte("130")) || *e.ExitCode != 130 {
		t.Errorf("got %+v", e)
	}
	for _, bad := range []string{"-1", "1.5", "256", "1000", "[]", "0x1"} {
		if (&evidence{}).usual([]byte(bad)) {
			t.Errorf("taken for an exit code: %s", bad)
		}
	}
	if (&evidence{}).usual([]byte(`{"exitCode":0,"exception":null,"commands":[],"result":{"repr":"1"}}`)) {
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
		e := &evidence{}
		e.fromStatus(syscall.WaitStatus(0))
		f := c.failure
		if known := e.Explain("x", &f); known != c.known || known && *e.ExitCode != c.code {
			t.Errorf("%+v: got %v, %d", f, known, *e.ExitCode)
		}
	}
}
