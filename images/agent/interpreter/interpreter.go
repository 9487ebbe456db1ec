package interpreter

import (
	"encoding/hex"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/identity"
	"exec-sandbox/agent/program"
)

const (
	// readiness is how long an interpreter may take to warm up. Software
	// emulation on a busy host is slow.
	readiness = 120 * time.Second
	// acknowledgement is how long it may take to start an execution that has
	// no time limit of its own.
	acknowledgement = 30 * time.Second
	// briefly is how long an execution runs before its start and its output
	// are sent. Most are over by then, and all of their frames leave together:
	// every write to the port and every wake-up costs them a good part of a
	// millisecond under emulation, and pipes that were watched serve no other.
	briefly = 20 * time.Millisecond
	// maxWait is between two looks for a pipe that nobody has opened for writing.
	maxWait = 100 * time.Millisecond
	// later is when the pipes of an ended execution are looked at again.
	later = 20 * time.Millisecond
	// hopeless is how many starts in a row may fail before executions do.
	hopeless = 3
)

// interpreter owns one interpreter across its lives and runs its executions
// one after the other. All of it happens on one goroutine; others post to it.
type interpreter struct {
	runner  *Runner
	program Interpreter
	warm    chan error // the outcome of the first start

	mu     sync.Mutex
	posted []func()
	wake   chan struct{}
	stop   chan struct{}

	// The rest belongs to the goroutine.
	count    int
	sequence int      // of executions
	slots    int      // made so far
	process  *process // nil while there is none
	failures int      // starts in a row that never got ready
	lost     bool     // state was lost since the last execution's end
	slot     *slot    // prepared, or being filled for queue[0]
	queue    []*execution
	current  *execution
	running  *slot
	last     cgroup.Counters // at the end of the latest execution
	ended    time.Time       // when that was
	failure  string          // why current must fail for a reason of ours
}

func newInterpreter(r *Runner, program Interpreter) *interpreter {
	return &interpreter{
		runner:  r,
		program: program,
		warm:    make(chan error, 1),
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
	}
}

// poke makes the goroutine look at what has changed.
func (i *interpreter) poke() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// post runs f on the goroutine.
func (i *interpreter) post(f func()) {
	i.mu.Lock()
	i.posted = append(i.posted, f)
	i.mu.Unlock()
	i.poke()
}

func (i *interpreter) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() { i.post(f) })
}

// onceOver does it on the interpreter's goroutine after a grace.
func (i *interpreter) onceOver(grace <-chan struct{}, f func()) {
	go func() {
		<-grace
		i.post(f)
	}()
}

func (i *interpreter) loop() {
	i.start()
	for {
		var exit <-chan syscall.WaitStatus
		if i.process != nil {
			exit = i.process.exit
		}
		select {
		case <-i.wake:
		case status := <-exit:
			i.hear() // what it said before it died counts
			i.died(status)
		case <-i.stop:
			i.end()
			return
		}
		i.mu.Lock()
		posted := i.posted
		i.posted = nil
		i.mu.Unlock()
		for _, f := range posted {
			f()
		}
		i.hear()
		i.advance()
	}
}

// hear acts on what the interpreter says.
func (i *interpreter) hear() {
	if i.process == nil {
		return
	}
	for _, line := range i.process.said.take() {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "ready":
			if !i.process.ready {
				i.process.ready = true
				i.failures = 0
				i.warmed(nil)
			}
		case "started":
			number, note, _ := strings.Cut(rest, " ")
			if i.concerns(number) && !i.current.started {
				i.acknowledged(note == "reseeded")
			}
		case "done", "held":
			number, said, _ := strings.Cut(rest, " ")
			if i.concerns(number) {
				if i.current.started {
					i.done(said, word == "held")
				} else {
					i.fail("the interpreter ended an execution that it had not started")
				}
			}
		}
	}
}

func (i *interpreter) concerns(number string) bool {
	return i.current != nil && i.failure == "" && number == strconv.Itoa(i.sequence)
}

// fail ends the current execution for a reason that is not the user's. The
// interpreter cannot be trusted any more.
func (i *interpreter) fail(reason string) {
	i.failure = reason
	i.process.kill()
}

// advance does whatever can be done next.
func (i *interpreter) advance() {
	if i.current != nil && !i.current.cancelSeen && i.current.isCancelled() {
		i.current.cancelSeen = true
		i.interrupt()
	}
	if i.process == nil && i.failures >= hopeless {
		for _, e := range i.queue {
			e.stream.Reset("failed", i.program.Name+" does not start")
		}
		i.queue = nil
	}
	if i.process == nil || !i.process.ready {
		return
	}
	for i.current == nil && len(i.queue) > 0 {
		head := i.queue[0]
		if head.isCancelled() {
			i.skip()
			continue
		}
		if err := i.fill(head); err != nil {
			if report := i.crowded(err); report != nil {
				head.stream.End(report)
				i.skip()
				continue
			}
			code := "failed"
			var bad *inputError
			if errors.As(err, &bad) {
				code = "invalid"
			}
			head.stream.Reset(code, err.Error())
			i.skip()
			continue
		}
		if !head.ready() {
			return
		}
		i.queue = i.queue[1:]
		i.begin(head)
	}
	if i.current == nil && i.slot == nil {
		i.prepare()
	}
}

// skip drops the first of the queue.
func (i *interpreter) skip() {
	if i.queue[0].bound {
		i.slot.discard()
		i.slot = nil
	}
	i.queue = i.queue[1:]
}

func (i *interpreter) prepare() error {
	i.slots++
	slot, err := newSlot(i.process.base, i.process.directory, i.slots, i.runner.config.User)
	if err != nil {
		return err
	}
	i.slot = slot
	return nil
}

// fill moves input that has arrived into the slot.
func (i *interpreter) fill(e *execution) error {
	if !e.bound {
		if i.slot == nil {
			if err := i.prepare(); err != nil {
				return err
			}
		}
		e.bound = true
	}
	return e.feed(i.slot)
}

// begin hands an execution to the interpreter.
func (i *interpreter) begin(e *execution) {
	p, session := i.process, i.runner.current()
	i.current, i.running, i.slot = e, i.slot, nil
	i.direct(e, i.running)
	memory := session.MemoryBytes
	if e.request.MemoryBytes != nil {
		memory = *e.request.MemoryBytes
	}
	processes := session.Processes
	if e.request.Processes != nil {
		processes = *e.request.Processes
	}
	if memory != session.MemoryBytes || processes != session.Processes {
		i.runner.outOfLine()
	}
	e.fileSize = session.FileSizeBytes
	if e.request.FileSizeBytes != nil {
		e.fileSize = *e.request.FileSizeBytes
	}
	e.wasFull = i.runner.config.Disk.IsFull()
	e.refused = i.runner.config.Refusals.Mark()
	if e.request.Changes != nil {
		e.mark = i.runner.config.Changes.Mark()
	}
	// Lowering the limit below what is in use ends the interpreter; that is a
	// limit met by this execution, so counting starts before.
	e.ordered, e.beganBoot = time.Now(), cgroup.BootClock()
	e.before = i.last
	if p.group.Begin(); e.ordered.Sub(i.ended) > later {
		e.before = p.group.Counters()
	}
	i.sequence++
	s := settings{
		Language: e.request.Language, Env: merge(session.Env, e.request.Env), Cwd: e.request.Cwd,
		Stdin: i.running.stdin >= 0, Rehearsal: e.request.Rehearsal,
	}
	if p.generation != session.generation {
		fresh := hex.EncodeToString(identity.Derive(session.Secret, "interpreter "+p.name))
		s.Entropy = &fresh
		e.reseed = true
	}
	line, err := i.order(s, e.code, i.sequence)
	if err == nil {
		err = p.group.Limit(memory, processes)
	}
	if err == nil {
		p.group.LimitFiles(e.fileSize)
	}
	if err == nil {
		err = p.order(line)
	}
	if report := i.crowded(err); report != nil {
		i.runner.config.Changes.Drop(e.mark)
		e.rest()
		e.stream.End(report)
		i.running.discard()
		i.current, i.running = nil, nil
		return
	}
	if err != nil {
		i.fail("handing over the execution: " + err.Error())
		return
	}
	p.used = true
	p.generation = session.generation
	if !e.reseed {
		i.startedNow()
		return
	}
	wait := acknowledgement
	if e.timeout() > 0 {
		wait = e.timeout() + program.MaxGrace
	}
	e.timer = i.after(wait, func() {
		if i.current == e && !e.started && e.interrupted.IsZero() {
			e.timedOut = e.timeout() > 0
			p.kill()
		}
	})
}

// crowded is the end of an execution that could not begin because users have
// filled what its input would lie on; nil for any other error, or none.
func (i *interpreter) crowded(err error) *evidence.Evidence {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return nil
	}
	allowed, used, ok := i.runner.config.Disk.SpaceFor(nil)
	if !ok {
		used, allowed = i.runner.space()
	}
	report := &evidence.Evidence{State: "kept"}
	report.DiskFull(allowed, used)
	if i.lost {
		report.State, i.lost = "reset", false
	}
	report.Fill()
	return report
}

// order is what tells the interpreter to run an execution: everything in one
// message where that has room, the rest in the slot's files.
func (i *interpreter) order(s settings, code []byte, sequence int) ([]byte, error) {
	line := append(make([]byte, 0, 512), "exec "...)
	line = append(strconv.AppendInt(line, int64(sequence), 10), ' ')
	line = append(append(line, i.running.name...), '\n')
	head := len(line)
	if i.running.code < 0 {
		if canHold(code) {
			if s.Code = code; code == nil {
				s.Code = []byte{} // no code is in no file, either
			}
			if line = s.encode(line, i.program.Shell); len(line) <= maxLine {
				return line, nil
			}
			s.Code, line = nil, line[:head]
		}
		if err := i.running.write("code", code); err != nil {
			return nil, err
		}
	}
	if line = s.encode(line, i.program.Shell); len(line) <= maxLine {
		return line, nil
	}
	name := "settings"
	if i.program.Shell {
		name = "settings.sh"
	}
	return line[:head], i.running.write(name, line[head:])
}

// acknowledged is what an interpreter says of itself before it runs anything of
// the first execution that it gets fresh entropy with.
func (i *interpreter) acknowledged(reseeded bool) {
	if !reseeded {
		i.fail("the interpreter did not take fresh entropy")
		return
	}
	i.current.timer.Stop()
	i.startedNow()
}

// startedNow is the moment from which the execution's time counts.
func (i *interpreter) startedNow() {
	e := i.current
	e.started, e.began = true, time.Now()
	s := i.running
	e.quiet = i.after(briefly, func() {
		if i.current == e {
			i.live(e, s, briefly)
		}
	})
	if e.timeout() > 0 {
		e.timer = i.after(e.timeout(), func() {
			if i.current == e && e.interrupted.IsZero() {
				e.timedOut = true
				i.interrupt()
			}
		})
	}
}

// live lets the host follow an execution that is not over at once.
func (i *interpreter) live(e *execution, s *slot, wait time.Duration) {
	e.noteStarted()
	out, err := s.stdout.Attend(), s.stderr.Attend()
	if out && err {
		return
	}
	// The interpreter has not come to opening them, or user code closed one.
	if wait *= 2; wait > maxWait {
		wait = maxWait
	}
	e.quiet = i.after(wait, func() {
		if i.current == e {
			i.live(e, s, wait)
		}
	})
}

// interrupt asks the whole group to stop and ends it if that is not heeded.
func (i *interpreter) interrupt() {
	e, p := i.current, i.process
	if !e.interrupted.IsZero() || p == nil {
		return
	}
	e.interrupted, e.grace = time.Now(), program.Grace()
	asked := map[int]string{}
	p.group.Interrupt(asked)
	i.nudge(e, p, asked)
	i.onceOver(e.grace, func() {
		if i.current == e {
			p.kill()
		}
	})
}

// nudge makes those look again who have not heeded SIGINT. One that comes
// between an interpreter's last look and a system call that waits is not seen
// before that call ends. SIGURG ends it: python.c and bash.c have a handler for
// it, and elsewhere it is ignored.
func (i *interpreter) nudge(e *execution, p *process, asked map[int]string) {
	i.after(program.GraceStep, func() {
		if i.current == e && i.process == p {
			p.group.Interrupt(asked)
			_ = unix.Tgkill(p.pid, p.pid, unix.SIGURG)
			i.nudge(e, p, asked)
		}
	})
}

// done ends an execution whose interpreter lives on. What it said is the
// evidence, unless that is in a file. It may hold the pipes still, and then
// writes nothing more to them.
func (i *interpreter) done(said string, held bool) {
	e, s, p := i.current, i.running, i.process
	e.stopTimers()
	after := p.group.Spent()
	i.ended = time.Now()
	report := &evidence.Evidence{}
	text, err := []byte(said), error(nil)
	if said == "" {
		s.littered = true
		text, err = s.evidence()
	}
	if err == nil {
		if report, err = evidence.Parse(text); err != nil {
			report = &evidence.Evidence{}
		}
	}
	if err != nil {
		if used, all := i.runner.space(); all > 0 && used == all {
			// User code has filled the file system that evidence goes to.
			report, err = &evidence.Evidence{}, nil
			report.DiskFull(all, used)
			report.Fill()
		}
	}
	succeeded := err == nil && report.Succeeded()
	if !succeeded {
		p.group.Incidents(&after)
	}
	if err == nil {
		e.measure(report, after)
		report.Storage(i.runner.config.Disk, e.fileSize, e.wasFull)
		report.Refusal(i.runner.config.Refusals, e.refused, p.pid)
	}
	i.handOver(e, s)
	report.Rest = e.rest()
	report.Changes = i.runner.config.Changes.Conclude(e.stream, e.mark, e.request.Changes)
	report.State = "kept"
	if i.lost {
		report.State = "reset"
	}
	if err != nil {
		e.noteStarted() // there is no end to say so
		e.stream.Reset("failed", "the interpreter left no evidence: "+err.Error())
	} else {
		e.stream.End(report)
	}
	i.current, i.running, i.lost = nil, nil, false
	runtime.Gosched() // the answer leaves before we tidy up
	if succeeded {
		p.group.Incidents(&after)
	}
	i.last = after
	if e.request.MemoryBytes != nil || e.request.Processes != nil {
		session := i.runner.current()
		_ = p.group.Limit(session.MemoryBytes, session.Processes)
	}
	if s.free(p.group, held) {
		i.slot = s
	} else {
		s.remove()
		i.after(later, func() {
			s.stdout.Follow()
			s.stderr.Follow()
		})
	}
	if !e.interrupted.IsZero() {
		i.sweepLater(e, p)
	}
}

// sweepLater ends what an interrupted execution started and what did not heed
// SIGINT, without touching what other executions left running.
func (i *interpreter) sweepLater(e *execution, p *process) {
	until := cgroup.BootClock()
	i.onceOver(e.grace, func() {
		if i.process == p {
			p.group.Sweep(e.beganBoot, until, p.pid)
		}
	})
}

// handOver forwards what is in the pipes now as the execution's output, and
// what comes later as background output.
func (i *interpreter) handOver(e *execution, s *slot) {
	b, id := &i.runner.background, e.stream.ID()
	s.stdout.Drain(b.Sink(e.epoch, id, channel.Stdout))
	s.stderr.Drain(b.Sink(e.epoch, id, channel.Stderr))
}

func merge(base, over map[string]string) map[string]string {
	if len(base) == 0 {
		return over
	}
	out := make(map[string]string, len(base)+len(over))
	for name, value := range base {
		out[name] = value
	}
	for name, value := range over {
		out[name] = value
	}
	return out
}
