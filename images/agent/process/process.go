package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/output"
	"exec-sandbox/agent/program"
	"exec-sandbox/agent/refusals"
)

// deathWait is how long killed processes may take to end.
const deathWait = 5 * time.Second

// Spawner starts programs.
type Spawner struct {
	Sandbox  *cgroup.Sandbox
	Disk     *disk.Disk
	Refusals *refusals.Tracker
	Reaper   *program.Reaper
	User     program.User
	Defaults func() program.Defaults
	Changes  *changes.Tracker
	Outputs  *output.Directory
	Log      func(format string, args ...any)

	count atomic.Uint64
}

// process is one program from OPEN to its end. Everything but what mu guards
// belongs to the goroutine of run.
type process struct {
	spawner  *Spawner
	request  *Request
	stream   *channel.Stream
	job      *job
	input    *input
	outputs  []output.Output
	overflow [2]*output.Overflow // of stdout and stderr

	ended   bool // the host ended it
	limited bool // its time limit ended it
	stopped bool // its output limit ended it
	mark    *changes.Mark
	limit   *time.Timer
	grace   <-chan struct{} // then all of it is killed

	wake   chan struct{}
	mu     sync.Mutex
	master *os.File // the agent's end of its terminal, if it has one; only run changes it
	orders []order
	reset  bool
	flood  bool // it wrote more than its output limit
}

// Spawn serves the method spawn.
func (s *Spawner) Spawn(stream *channel.Stream, payload []byte) error {
	request, err := Decode(payload)
	if err != nil {
		return stream.Invalid(err)
	}
	p := &process{spawner: s, request: request, stream: stream, wake: make(chan struct{}, 1), input: newInput(stream.Grant)}
	stream.Receive(p)
	go p.run() // ends with the program
	return nil
}

// Data receives stdin.
func (p *process) Data(sub byte, payload []byte, last bool) {
	if sub == channel.Stdin {
		p.input.push(payload, last)
	}
}

// Note receives an order. A new size is set at once, before what is typed after
// it.
func (p *process) Note(payload []byte) {
	o, err := parseOrder(payload)
	if err != nil {
		return
	}
	if o.Event == "resize" {
		p.resize(o.size)
		return
	}
	p.mu.Lock()
	p.orders = append(p.orders, o)
	p.mu.Unlock()
	p.poke()
}

// Reset ends the program, because the host has left.
func (p *process) Reset() {
	p.mu.Lock()
	p.reset = true
	p.mu.Unlock()
	p.poke()
}

// Survives keeps a program running in a copy of the machine, if the host asked
// for that.
func (p *process) Survives() bool { return p.request.Survives }

func (p *process) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *process) run() {
	if err := p.start(); err != nil {
		code := "failed"
		if errors.Is(err, unix.E2BIG) {
			code = "invalid"
		}
		p.input.stop()
		p.stream.Reset(code, err.Error())
		return
	}
	defer p.cleanUp()
	failure := p.job.started()
	p.stream.Note(map[string]any{"event": "started", "pid": p.job.pid})
	for _, o := range p.outputs {
		o.Start()
	}
	if failure != nil {
		p.reportFailure(failure, <-p.job.exit)
		return
	}
	p.finish(p.follow())
}

// start leaves nothing behind when it fails.
func (p *process) start() error {
	s, r := p.spawner, p.request
	user, defaults := s.User, s.Defaults()
	if r.User == "root" {
		user = program.Root
	}
	files, err := p.open(user)
	defer func() {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	env := map[string]string{}
	if r.Pty != nil {
		env["TERM"] = "xterm-256color"
	}
	for _, over := range []map[string]string{defaults.Env, r.Env} {
		for name, value := range over {
			env[name] = value
		}
	}
	l := launch{
		Sandbox: s.Sandbox, Disk: s.Disk, Refusals: s.Refusals,
		Name: "process-" + strconv.FormatUint(s.count.Add(1), 10), User: user, Argv: r.Argv, Cwd: user.Home, Env: env,
		Files: files, Terminal: r.Pty != nil,
		MemoryBytes: defaults.MemoryBytes, Processes: defaults.Processes, FileSizeBytes: defaults.FileSizeBytes,
	}
	if r.Cwd != nil {
		l.Cwd = *r.Cwd
	}
	if r.MemoryBytes != nil {
		l.MemoryBytes = *r.MemoryBytes
	}
	if r.Processes != nil {
		l.Processes = *r.Processes
	}
	if r.FileSizeBytes != nil {
		l.FileSizeBytes = *r.FileSizeBytes
	}
	if r.Changes != nil {
		p.mark = s.Changes.Mark()
	}
	p.job, err = l.start(s.Reaper)
	if err != nil {
		s.Changes.Drop(p.mark)
		p.close()
		return err
	}
	return nil
}

// open makes the program's standard files, or one terminal for all of them, and
// the agent's ends. The caller must close the program's files.
func (p *process) open(user program.User) (theirs []int, err error) {
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.request.Pty != nil {
		master, slave, err := openTerminal(user.UID, *p.request.Pty)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		p.master = os.NewFile(uintptr(master), "terminal")
		p.mu.Unlock()
		go p.input.write(p.master, true) // ended by stop
		screen, err := output.NewScreen(p.master, p.sink(channel.Stdout))
		if err != nil {
			_ = p.master.Close()
			return []int{slave}, fmt.Errorf("watching a terminal: %w", err)
		}
		p.outputs = append(p.outputs, screen)
		return []int{slave}, nil
	}
	for _, sub := range []byte{channel.Stdin, channel.Stdout, channel.Stderr} {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			return theirs, fmt.Errorf("making a pipe: %w", err)
		}
		ours, other := pipe[0], pipe[1]
		if sub == channel.Stdin {
			ours, other = other, ours
		}
		theirs = append(theirs, other)
		_ = unix.SetNonblock(ours, true)
		// The user must own it to open /dev/stdout by its name.
		if err := unix.Fchown(other, user.UID, user.GID); err != nil {
			_ = unix.Close(ours)
			return theirs, fmt.Errorf("changing the owner of a pipe: %w", err)
		}
		if sub == channel.Stdin {
			go p.input.write(os.NewFile(uintptr(ours), "stdin"), false) // ended by stop, and closes it
		} else {
			p.outputs = append(p.outputs, output.NewPipe(ours, p.sink(sub)))
		}
	}
	return theirs, nil
}

// sink is the sink of one output: it forwards it, and keeps what the host does
// not.
func (p *process) sink(sub byte) func(payload []byte) {
	name := [...]string{channel.Stdout: "stdout", channel.Stderr: "stderr"}[sub]
	overflow := p.spawner.Outputs.Overflow(p.stream.ID(), name, p.request.OutputBytes, p.request.Spill)
	p.overflow[sub-channel.Stdout] = overflow
	var total int64
	noticed := p.request.OutputBytes == nil || !p.request.OutputFail
	return func(payload []byte) {
		overflow.Write(payload)
		total += int64(len(payload))
		if !noticed && total > *p.request.OutputBytes {
			noticed = true
			p.mu.Lock()
			p.flood = true
			p.mu.Unlock()
			p.poke()
		}
		p.stream.Send(sub, payload)
	}
}

// close is for a program that was not started.
func (p *process) close() {
	p.input.stop()
	for _, o := range p.outputs {
		o.Close()
	}
}

// reportFailure reports why the program could not be started.
func (p *process) reportFailure(failure *program.Failure, status syscall.WaitStatus) {
	p.input.stop()
	for _, o := range p.outputs {
		o.Drain(output.Discard)
	}
	ending := p.job.evidence(status, nil)
	changed := p.spawner.Changes.Conclude(p.stream, p.mark, p.request.Changes)
	if ending.Explain(p.request.Argv[0], failure) {
		ending.Changes = changed
		p.stream.End(ending)
		return
	}
	switch failure.Kind {
	case program.NotEntered:
		p.stream.Reset("invalid", fmt.Sprintf("the working directory %q: %s", failure.Path, failure.Message))
	case program.TooLarge:
		p.stream.Reset("invalid", "arguments and environment are too large")
	default:
		p.stream.Reset("failed", failure.Message)
	}
}

// follow carries out orders and limits until the program ends.
func (p *process) follow() syscall.WaitStatus {
	p.limit = time.NewTimer(time.Hour)
	p.limit.Stop()
	defer p.limit.Stop()
	if timeout := p.request.timeout(); timeout != nil {
		p.limit.Reset(*timeout)
	}
	p.obey()
	for {
		select {
		case <-p.wake:
			p.obey()
		case <-p.limit.C:
			if !p.ended && !p.stopped {
				p.limited = true
				p.stop()
			}
		case <-p.grace:
			p.grace = nil
			p.job.signal(unix.SIGKILL)
		case status := <-p.job.exit:
			return status
		}
	}
}

func (p *process) obey() {
	p.mu.Lock()
	orders, reset, flood := p.orders, p.reset, p.flood
	p.orders, p.flood = nil, false
	p.mu.Unlock()
	for _, o := range orders {
		switch o.Event {
		case "signal":
			p.job.signal(o.signal())
		case "close":
			reset = true
		}
	}
	if flood && !p.ended && !p.limited {
		p.stopped = true
		p.stop()
	}
	if reset && !p.ended {
		p.ended = true
		p.end()
	}
}

// resize runs on the connection's goroutine, and never waits.
func (p *process) resize(s size) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.master == nil || s.check() != nil {
		return
	}
	raw, err := p.master.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { err = resize(int(fd), s) })
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		p.spawner.Log("%v", err)
	}
}

// stop ends the program because of a limit.
func (p *process) stop() {
	p.job.signal(unix.SIGINT)
	p.grace = program.Grace()
}

// end ends the program because the host wants it.
func (p *process) end() {
	p.job.signal(unix.SIGTERM)
	if p.master != nil {
		p.job.signal(unix.SIGHUP) // an interactive shell ignores SIGTERM
	}
	p.job.signal(unix.SIGCONT)
	p.grace = program.Grace()
}

// finish reports the end of a program that ran. What the program leaves running
// stays, unless it was ended.
func (p *process) finish(status syscall.WaitStatus) {
	p.input.stop()
	var timeout *time.Duration
	if p.limited {
		timeout = p.request.timeout()
	}
	ending := p.job.evidence(status, timeout)
	for _, o := range p.outputs {
		o.Drain(output.Discard)
	}
	p.obey() // the host may have left while this waited for credit
	if p.ended || p.limited || p.stopped {
		p.clear()
	}
	ending.Rest = evidence.RestOf(p.overflow[0].End(), p.overflow[1].End())
	ending.Changes = p.spawner.Changes.Conclude(p.stream, p.mark, p.request.Changes)
	p.stream.End(ending)
	if p.master != nil {
		_ = p.master.Close() // a terminal cannot be used after its leader's end
	}
}

// clear waits until everything that outlived the program is gone.
func (p *process) clear() {
	for until := time.Now().Add(deathWait); !p.job.gone() && time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.grace:
			p.grace = nil
			p.job.signal(unix.SIGKILL)
		default:
		}
	}
}

// cleanUp removes the cgroup once its last process is gone.
func (p *process) cleanUp() {
	for wait := 50 * time.Millisecond; !p.job.remove(); time.Sleep(wait) {
		if wait < 10*time.Second {
			wait *= 2
		}
	}
}
