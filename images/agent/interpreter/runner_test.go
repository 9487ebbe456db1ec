package interpreter

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/program"
)

// script is an interpreter of shell code that implements the protocol, in place
// of the image's interpreters.
const script = `
exec 8<>"$1/in" 9<>"$1/out"
trap : INT
run() { eval "$__exec_sandbox_code"; }
echo ready >&9
while :; do
  read -r _ n slot <&8 || continue
  d="$1/$slot"
  unset __exec_sandbox_code __exec_sandbox_stdin
  settings=
  until [ -n "$settings" ] || [ -e "$d/settings.sh" ]; do IFS= read -r -d '' -t 0.03 settings <&8; done
  if [ -n "$settings" ]; then eval "$settings"; else . "$d/settings.sh"; fi
  [ -n "$__exec_sandbox_stdin" ] && in="$d/stdin" || in=/dev/null
  exec <"$in" >"$d/stdout" 2>"$d/stderr"
  if [ -z "$__exec_sandbox_entropy" ]; then :; elif [ -e "$1/stale" ]; then echo "started $n" >&9; else echo "started $n reseeded" >&9; fi
  if [ -n "${__exec_sandbox_code+x}" ]; then run; else . "$d/code"; fi
  status=$?
  exec </dev/null >/dev/null 2>/dev/null
  echo "done $n {\"exitCode\":$status,\"exception\":null,\"commands\":[],\"result\":null}" >&9
done
`

// plain is a group that is a session of processes, without counters.
type plain struct{ pid string }

func (p *plain) Procs() string               { return p.pid }
func (p *plain) Limit(int64, int) error      { return nil }
func (p *plain) LimitFiles(int64)            {}
func (p *plain) Begin()                      {}
func (p *plain) Sweep(float64, float64, int) {}
func (p *plain) Kill()                       { p.Signal(syscall.SIGKILL) }
func (p *plain) Remove() bool                { return true }
func (p *plain) Counters() cgroup.Counters   { return cgroup.Unknown }
func (p *plain) Spent() cgroup.Counters      { return p.Counters() }
func (p *plain) Incidents(*cgroup.Counters)  {}
func (p *plain) Alone() bool                 { return false }
func (p *plain) Interrupt(asked map[int]string) {
	if len(asked) == 0 {
		asked[0] = ""
		p.Signal(syscall.SIGINT)
	}
}
func (p *plain) Signal(sig syscall.Signal) {
	text, _ := os.ReadFile(p.pid)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = syscall.Kill(-pid, sig)
	}
}

// machine is a runner and its channel, with a host at the other end.
type machine struct {
	t      *testing.T
	runner *Runner
	root   string
	pipe   net.Conn
	frames chan channel.Frame
	next   uint32
}

// opener passes every request to the runner, as the session does.
type opener struct{ runner *Runner }

func (o opener) Hello([]byte) (any, error) {
	err := o.runner.Greet(Session{Defaults: program.Defaults{Env: map[string]string{"SESSION": "it's"}}, Secret: []byte("secret")})
	return map[string]bool{"limits": err == nil}, nil
}

func (o opener) Open(s *channel.Stream, payload []byte) error {
	return o.runner.Exec(s, payload)
}

func start(t *testing.T) *machine {
	t.Helper()
	root := t.TempDir()
	source := filepath.Join(root, "interpreter.sh")
	if err := os.WriteFile(source, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "pids"), 0o700); err != nil {
		t.Fatal(err)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	reaper := program.NewReaper()
	go reaper.Run(children)
	runner, err := New(Config{
		Directory:    filepath.Join(root, "run"),
		Spill:        filepath.Join(root, "spill"),
		User:         program.User{UID: os.Getuid(), GID: os.Getgid(), Name: "user", Home: root},
		Interpreters: []Interpreter{{Name: "bash", Argv: []string{"/bin/bash", source}, Shell: true}},
		Reaper:       reaper,
		// In place of the launcher.
		Command: func(procs string, argv []string) []string {
			return append([]string{"/bin/sh", "-c", `echo $$ >"$0"; exec "$@"`, procs}, argv...)
		},
		Group: func(name string) (Group, error) {
			return &plain{filepath.Join(root, "pids", name)}, nil
		},
		Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	conn := channel.New(theirs, opener{runner}, func(line string) { t.Log(line) })
	runner.Attach(conn)
	if err := runner.Start(); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = conn.Serve()
	}()
	m := &machine{t: t, runner: runner, root: root, pipe: ours, frames: make(chan channel.Frame, 4096), next: 1}
	go func() {
		defer close(m.frames)
		decoder := channel.NewDecoder(ours)
		for {
			f, _, err := decoder.Next()
			if err != nil {
				return
			}
			if f != nil {
				copied := *f
				copied.Payload = append([]byte(nil), f.Payload...)
				m.frames <- copied
			}
		}
	}()
	t.Cleanup(func() {
		ours.Close()
		<-served
		runner.Close()
		signal.Stop(children)
		close(children)
	})
	m.write([]byte(channel.Magic+"epoch--1"), wire(0, channel.Hello, 0, `{}`))
	if f := m.frame(); f.Kind != channel.Hello || string(f.Payload) != `{"limits":true}` {
		t.Fatalf("got %+v", f)
	}
	return m
}

func wire(stream uint32, kind channel.Kind, flags byte, payload string) []byte {
	n := len(payload)
	header := []byte{byte(n), byte(n >> 8), byte(n >> 16), 0, byte(stream), byte(stream >> 8), 0, 0, byte(kind), flags, 0, 0}
	return append(header, payload...)
}

func (m *machine) write(parts ...[]byte) {
	m.t.Helper()
	for _, p := range parts {
		if _, err := m.pipe.Write(p); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *machine) frame() channel.Frame {
	m.t.Helper()
	select {
	case f := <-m.frames:
		return f
	case <-time.After(10 * time.Second):
		m.t.Fatal("no frame comes")
		panic("unreachable")
	}
}

// open starts an execution and returns its stream.
func (m *machine) open(code, stdin, more string) uint32 {
	id := m.next
	m.next += 2
	m.write(
		wire(id, channel.Open, 0, `{"method":"exec","language":"bash"`+more+`}`),
		wire(id, channel.Data, channel.Code|channel.Last, code),
		wire(id, channel.Data, channel.Stdin|channel.Last, stdin),
	)
	return id
}

// outcome is everything that an execution sent.
type outcome struct {
	stdout, stderr string
	started        bool
	end            evidence.Evidence
	reset          string
}

func (m *machine) wait(id uint32) (o outcome) {
	m.t.Helper()
	for {
		f := m.frame()
		if f.Stream != id {
			m.t.Fatalf("a frame of stream %d, kind %d %q, while waiting for %d", f.Stream, f.Kind, f.Payload, id)
		}
		switch f.Kind {
		case channel.Data:
			if f.Flags == channel.Stdout {
				o.stdout += string(f.Payload)
			} else {
				o.stderr += string(f.Payload)
			}
		case channel.Note:
			o.started = string(f.Payload) == `{"event":"started"}`
		case channel.Reset:
			o.reset = string(f.Payload)
			return o
		case channel.End:
			if err := json.Unmarshal(f.Payload, &o.end); err != nil {
				m.t.Fatal(err)
			}
			return o
		}
	}
}

func (m *machine) run(code, stdin, more string) outcome {
	m.t.Helper()
	return m.wait(m.open(code, stdin, more))
}

func (o outcome) code() int {
	if o.end.ExitCode == nil {
		return -1
	}
	return *o.end.ExitCode
}

func TestExecutions(t *testing.T) {
	m := start(t)
	first := m.run(`x=1; echo out; echo err >&2; (exit 3)`, "", "")
	if first.stdout != "out\n" || first.stderr != "err\n" || first.code() != 3 || first.end.State != "kept" {
		t.Errorf("got %+v", first)
	}
	if got := m.run(`sleep 0.1`, "", ""); !got.started {
		t.Errorf("the host does not know that it began: %+v", got)
	}
	// It has run, although no END says so.
	if got := m.run(`echo "done $n" >&9; sleep 0.1`, "", ""); !got.started || !strings.Contains(got.reset, "no evidence") {
		t.Errorf("no evidence: got %+v", got)
	}
	if got := m.run("", "", ""); got.code() != 0 || got.end.State != "kept" {
		t.Errorf("no code: got %+v", got)
	}
	if got := m.run(`echo $x; cat`, "in\x00put", `,"stdinBytes":6`); got.stdout != "1\nin\x00put" {
		t.Errorf("state or stdin: got %q", got.stdout)
	}
	got := m.run(`printf '%s|' "${__exec_sandbox_env[@]}" "$__exec_sandbox_cwd"`, "", `,"env":{"A b":"'\n"},"cwd":"/x y"`)
	if want := "A b='\n|SESSION=it's|/x y|"; got.stdout != want {
		t.Errorf("settings: got %q, want %q", got.stdout, want)
	}
	if got := m.run(`wc -c`, strings.Repeat("z", 300000)[:200000], fmt.Sprintf(`,"stdinBytes":%d`, 200000)); strings.TrimSpace(got.stdout) != "200000" {
		t.Errorf("got %+v", got)
	}
}

func TestLargeInputIsOnTheDisk(t *testing.T) {
	m := start(t)
	id := m.next
	m.next += 2
	m.write(wire(id, channel.Open, 0, `{"method":"exec","language":"bash","stdinBytes":300000}`),
		wire(id, channel.Data, channel.Code|channel.Last, `readlink "$d/stdin" >&2; wc -c`))
	block := strings.Repeat("z", 100000)
	m.write(wire(id, channel.Data, channel.Stdin, block), wire(id, channel.Data, channel.Stdin, block))
	if f := m.frame(); f.Kind != channel.Credit || f.Stream != id {
		t.Fatalf("got %+v, want credit", f)
	}
	m.write(wire(id, channel.Data, channel.Stdin|channel.Last, block))
	got := m.wait(id)
	if strings.TrimSpace(got.stdout) != "300000" || !strings.HasPrefix(got.stderr, m.root+"/spill/") {
		t.Errorf("got %+v", got)
	}
	m.run(":", "", "")
	if left, _ := filepath.Glob(m.root + "/spill/*"); len(left) > 0 {
		t.Errorf("%v is left behind", left)
	}
}

func TestOutputIsWholeAtTheEnd(t *testing.T) {
	m := start(t)
	for i := 0; i < 20; i++ {
		got := m.run(`head -c 100000 /dev/zero; sleep 5 & echo last`, "", "")
		if len(got.stdout) != 100005 || !strings.HasSuffix(got.stdout, "last\n") {
			t.Fatalf("round %d: %d bytes", i, len(got.stdout))
		}
	}
}

func TestBackgroundOutputHasItsOwnStream(t *testing.T) {
	m := start(t)
	id := m.open(`(sleep 0.2; echo late) & echo now`, "", "")
	if got := m.wait(id); got.stdout != "now\n" {
		t.Fatalf("got %q", got.stdout)
	}
	for _, want := range []string{`{"method":"output"}`, fmt.Sprintf(`{"execution":%d}`, id), "late\n"} {
		if f := m.frame(); f.Stream != 2 || string(f.Payload) != want {
			t.Errorf("got stream %d %q, want %q", f.Stream, f.Payload, want)
		}
	}
}

func TestOneAtATimeInOrder(t *testing.T) {
	m := start(t)
	a := m.open(`sleep 0.2; echo a`, "", "")
	b := m.open(`echo b`, "", "")
	c := m.open(`echo c`, "", "")
	m.write(wire(b, channel.Reset, 0, `{"code":"cancelled","message":""}`))
	if got := m.wait(a); got.stdout != "a\n" {
		t.Errorf("got %q", got.stdout)
	}
	if got := m.wait(c); got.stdout != "c\n" {
		t.Errorf("got %q", got.stdout)
	}
}

func TestTimeLimitAndCancelKeepAnInterpreterThatStops(t *testing.T) {
	m := start(t)
	m.run(`x=1`, "", "")
	got := m.run(`sleep 30; echo $?`, "", `,"timeMs":200`)
	if len(got.end.Limits) != 1 || got.end.Limits[0].Limit != "time" || got.end.Limits[0].Allowed != 200 ||
		got.end.Limits[0].Observed < 200 || got.end.State != "kept" || got.stdout != "130\n" {
		t.Errorf("got %+v", got)
	}
	id := m.open(`echo here; sleep 30`, "", "")
	for f := m.frame(); f.Kind != channel.Data; f = m.frame() {
	}
	m.write(wire(id, channel.Reset, 0, `{"code":"cancelled","message":""}`))
	if got := m.run(`echo $x`, "", ""); got.stdout != "1\n" {
		t.Errorf("after a cancel: %+v", got)
	}
}

func TestTimeLimitKillsAnInterpreterThatDoesNotStop(t *testing.T) {
	m := start(t)
	m.run(`x=1`, "", "")
	began := time.Now()
	got := m.run(`trap '' INT; echo out; while :; do sleep 1; done`, "", `,"timeMs":200`)
	if took := time.Since(began); took < 1200*time.Millisecond || took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if got.code() != 137 || got.end.Signal == nil || *got.end.Signal != "SIGKILL" || got.end.State != "reset" || got.stdout != "out\n" {
		t.Errorf("got %+v", got)
	}
	if got := m.run(`echo [$x]`, "", ""); got.stdout != "[]\n" || got.end.State != "kept" {
		t.Errorf("after the reset: %+v", got)
	}
}

func TestDeathIsReported(t *testing.T) {
	m := start(t)
	if got := m.run(`echo out; sleep 100 & exit 6`, "", ""); got.code() != 6 || got.end.State != "reset" || got.stdout != "out\n" || got.end.Signal != nil {
		t.Errorf("got %+v", got)
	}
	if got := m.run(`kill -9 $$`, "", ""); got.code() != 137 || *got.end.Signal != "SIGKILL" || len(got.end.Limits) != 0 {
		t.Errorf("got %+v", got)
	}
	// A death between executions is reported by the next one.
	m.run(`(sleep 0.1; kill -9 $$) &`, "", "")
	time.Sleep(300 * time.Millisecond)
	if got := m.run(`:`, "", ""); got.end.State != "reset" {
		t.Errorf("got %+v", got)
	}
	// If input of the next execution is lost with it, the host may send that
	// again.
	m.run(`(sleep 0.1; kill -9 $$) &`, "", "")
	id := m.next
	m.next += 2
	m.write(wire(id, channel.Open, 0, `{"method":"exec","language":"bash"}`), wire(id, channel.Data, channel.Code, "echo "))
	if got := m.wait(id); !strings.Contains(got.reset, `"lost"`) || got.started {
		t.Errorf("got %+v", got)
	}
	if got := m.run(`echo next`, "", ""); got.stdout != "next\n" {
		t.Errorf("got %+v", got)
	}
}

func TestAnInterpreterWithOldEntropyRunsNothing(t *testing.T) {
	m := start(t)
	if err := os.WriteFile(m.root+"/run/bash-1/stale", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := m.run(`echo ran`, "", ""); !strings.Contains(got.reset, `"failed"`) || got.stdout != "" || got.started {
		t.Errorf("got %+v", got)
	}
	if got := m.run(`echo ran`, "", ""); got.stdout != "ran\n" {
		t.Errorf("the next one: %+v", got)
	}
}

func TestBadRequests(t *testing.T) {
	m := start(t)
	for more, code := range map[string]string{
		`,"env":{"":"x"}`:        "invalid",
		`,"env":{"A=B":"x"}`:     "invalid",
		`,"env":{"A":"x\u0000"}`: "invalid",
		`,"cwd":"a\u0000"`:       "invalid",
		`,"timeMs":0`:            "invalid",
		`,"memoryBytes":-1`:      "invalid",
		`,"codeBytes":99`:        "invalid",
		`,"language":"ruby"`:     "unsupported",
	} {
		if got := m.run(`echo ran`, "", more); !strings.Contains(got.reset, `"`+code+`"`) {
			t.Errorf("%s: got %+v", more, got)
		}
	}
	if got := m.run(`echo ran`, "", ""); got.stdout != "ran\n" {
		t.Errorf("after them: %+v", got)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	m := start(t)
	for i := 0; i < 5; i++ {
		m.run(`touch "$d/more"; mkdir "$d/dir"`, "", "")
	}
	m.run(`exit 1`, "", "")
	m.run(`:`, "", "")
	if err := m.runner.Settle(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(m.root + "/run/*/[0-9]*")
	if len(left) != 1 { // the prepared one
		t.Errorf("%v are left behind", left)
	}
}
