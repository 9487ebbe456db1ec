package interpreter

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"exec-sandbox/agent/cgroup"
)

const (
	// readiness is how long an interpreter may take to warm up: software
	// emulation on a busy host is slow.
	readiness = 120 * time.Second
	// acknowledgement is how long it may take to start an execution that has
	// no time limit of its own.
	acknowledgement = 30 * time.Second
	// briefly is how long an execution runs before its start and its output are
	// sent. Most are over by then, and all of their frames leave together:
	// under emulation every write to the port and every wake-up costs a good
	// part of a millisecond. Besides, pipes that were watched cannot be used
	// again.
	briefly = 20 * time.Millisecond
	// maxWait is the longest time between two looks whether a pipe has been
	// opened for writing.
	maxWait = 100 * time.Millisecond
	// later is when the pipes of an ended execution are looked at again.
	later = 20 * time.Millisecond
	// maxFailedStarts is how many starts in a row may fail before executions
	// do, too.
	maxFailedStarts = 3
)

// interpreter owns one interpreter, starts it again when it dies, and runs its
// executions one after the other. It does everything on one goroutine; others
// post to it.
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
	failures int      // failed starts in a row
	lost     bool     // state was lost after the end of the last execution
	slot     *slot    // prepared, or being filled for queue[0]
	queue    []*execution
	current  *execution
	running  *slot
	last     cgroup.Counters // at the end of the latest execution
	ended    time.Time       // when that was
	failure  string          // why current fails, if the reason is not the user's
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

// poke wakes the goroutine.
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

// afterGrace runs f on the goroutine after a grace.
func (i *interpreter) afterGrace(grace <-chan struct{}, f func()) {
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
			i.hear() // what it reported before it died counts
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

// hear handles what the interpreter reports.
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
// interpreter cannot be trusted any more, so it is killed.
func (i *interpreter) fail(reason string) {
	i.failure = reason
	i.process.kill()
}

// advance does what can be done next.
func (i *interpreter) advance() {
	if i.current != nil && !i.current.cancelSeen && i.current.isCancelled() {
		i.current.cancelSeen = true
		i.interrupt()
	}
	if i.process == nil && i.failures >= maxFailedStarts {
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
			if report := i.diskFull(err); report != nil {
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

// skip drops the first execution of the queue.
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

// fill writes the input that has arrived into the slot.
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
