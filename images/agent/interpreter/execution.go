package interpreter

import (
	"fmt"
	"sync"
	"time"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/output"
	"exec-sandbox/agent/quick"
)

// execution is one request, from OPEN to its end. The fields above the lock
// belong to its interpreter's goroutine.
type execution struct {
	request *Request
	stream  *channel.Stream
	epoch   uint64
	owner   *interpreter

	bound       bool // its input goes to the slot
	received    [2]int64
	code        []byte  // while it is short and in no file
	complete    [2]bool // code, stdin
	reseed      bool    // its interpreter must use fresh entropy first
	ordered     time.Time
	started     bool
	began       time.Time
	beganBoot   float64
	cancelSeen  bool
	interrupted time.Time // by a time limit, an output limit or a cancel
	grace       <-chan struct{}
	timedOut    bool
	noted       bool        // the host knows that it started
	timer       *time.Timer // its next time limit
	quiet       *time.Timer // when its start and output are sent
	before      cgroup.Counters
	fileSize    int64  // its limit, bytes; 0 = none
	wasFull     bool   // whether the disk was full before
	refused     uint64 // how many connections were refused before
	overflow    [2]*output.Overflow
	mark        *changes.Mark // its changes are reported since this

	mu        sync.Mutex
	arrived   []piece
	cancelled bool
}

// piece is input that the interpreter's goroutine has not consumed yet. Credit
// limits how much there is.
type piece struct {
	input   int // 0 code, 1 stdin
	payload []byte
	last    bool
}

// Data receives code and stdin; it runs on the channel's reading goroutine.
func (e *execution) Data(sub byte, payload []byte, last bool) {
	p := piece{last: last, payload: append([]byte(nil), payload...)}
	switch sub {
	case channel.Code:
	case channel.Stdin:
		p.input = 1
	default:
		return
	}
	e.mu.Lock()
	e.arrived = append(e.arrived, p)
	e.mu.Unlock()
	e.owner.poke()
}

// Note does nothing: the host sends no events.
func (e *execution) Note([]byte) {}

// Reset cancels it.
func (e *execution) Reset() {
	e.mu.Lock()
	e.cancelled = true
	e.mu.Unlock()
	e.owner.poke()
}

func (e *execution) take() []piece {
	e.mu.Lock()
	defer e.mu.Unlock()
	pieces := e.arrived
	e.arrived = nil
	return pieces
}

func (e *execution) isCancelled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancelled
}

// inputError is an error of the host in what it sends.
type inputError struct{ message string }

func (e *inputError) Error() string { return e.message }

// feed writes what has arrived into the slot.
func (e *execution) feed(s *slot) error {
	names := [2]string{"code", "stdin"}
	declared := [2]*int64{e.request.CodeBytes, e.request.StdinBytes}
	for _, p := range e.take() {
		if e.complete[p.input] {
			if len(p.payload) == 0 {
				continue
			}
			return &inputError{names[p.input] + " continues after its end"}
		}
		e.received[p.input] += int64(len(p.payload))
		if want := declared[p.input]; want != nil &&
			(e.received[p.input] > *want || p.last && e.received[p.input] < *want) {
			return &inputError{fmt.Sprintf("%s does not have the declared %d bytes", names[p.input], *want)}
		}
		if e.received[0] > maxCode {
			return &inputError{"the code is too large"}
		}
		if err := e.store(p, s); err != nil {
			return fmt.Errorf("writing %s: %w", names[p.input], err)
		}
		e.complete[p.input] = p.last
		e.stream.Grant(len(p.payload))
	}
	return nil
}

// store puts a piece where the interpreter will find it. Short code stays in
// memory, for the order; empty stdin needs no file.
func (e *execution) store(p piece, s *slot) error {
	fd, name, size := &s.code, "code", e.request.CodeBytes
	if p.input == 1 {
		fd, name, size = &s.stdin, "stdin", e.request.StdinBytes
	}
	if *fd < 0 {
		if p.input == 0 && len(e.code)+len(p.payload) <= maxInOrder {
			e.code = append(e.code, p.payload...)
			return nil
		}
		if len(p.payload) == 0 {
			return nil
		}
		var err error
		if size != nil && *size > maxInMemory {
			*fd, err = s.spill(e.owner.runner.config.Spill, name)
		} else {
			*fd, err = s.file(name)
		}
		if err == nil && p.input == 0 {
			err = quick.WriteAll(*fd, e.code)
			e.code = nil
		}
		if err != nil {
			return err
		}
	}
	return quick.WriteAll(*fd, p.payload)
}

func (e *execution) ready() bool { return e.complete[0] && e.complete[1] }

// endOverflow ends both outputs' overflow, and names the files, if there are
// any.
func (e *execution) endOverflow() *evidence.Rest {
	return evidence.RestOf(e.overflow[0].End(), e.overflow[1].End())
}

// measure adds usage and limits from the counters before and after.
func (e *execution) measure(report *evidence.Evidence, after cgroup.Counters) {
	ran := time.Since(e.ordered)
	if e.started {
		ran = time.Since(e.began)
		report.Ran(ran)
	}
	if e.timedOut {
		report.TimedOut(e.request.timeout(), ran)
	}
	report.Count(e.before, after)
}

func (e *execution) stopTimers() {
	for _, t := range []*time.Timer{e.timer, e.quiet} {
		if t != nil {
			t.Stop()
		}
	}
}

// noteStarted tells the host, once, that user code has begun; END means that as
// well.
func (e *execution) noteStarted() {
	if e.started && !e.noted {
		e.noted = true
		e.stream.Note(channel.Raw(`{"event":"started"}`))
	}
}
