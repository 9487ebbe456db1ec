package interpreter

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/flat"
	"exec-sandbox/agent/output"
	"exec-sandbox/agent/quick"
)

// maxCode bounds the code of one execution, in bytes; the host has the same limit.
const maxCode = 16 << 20

// Request is OPEN's payload: every method's, because reading it twice to know
// the method first would cost each execution.
type Request struct {
	Method      string            `json:"method"`
	Language    string            `json:"language"`
	CodeBytes   *int64            `json:"codeBytes"`
	StdinBytes  *int64            `json:"stdinBytes"`
	Env         map[string]string `json:"env"`
	Cwd         *string           `json:"cwd"`
	TimeoutMs   *int64            `json:"timeoutMs"`
	MemoryBytes *int64            `json:"memoryBytes"`
	Processes   *int              `json:"processes"`

	FileSizeBytes *int64 `json:"fileSizeBytes"` // 0 = no limit
	OutputBytes   *int64 `json:"outputBytes"`   // of each output
	OutputFail    bool   `json:"outputFail"`    // more than that ends it
	Keep          bool   `json:"keep"`          // more than that goes to a file

	Changes *changes.Options `json:"changes"` // asks for a report; nil: none

	Rehearsal bool `json:"rehearsal"` // the host's own code, which leaves nothing behind
}

// ParseRequest reads OPEN's payload.
func ParseRequest(payload []byte) (*Request, error) {
	r := &Request{}
	if r.usual(payload) {
		return r, nil
	}
	*r = Request{}
	if err := json.Unmarshal(payload, r); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	return r, nil
}

// usual reads the request of nearly every execution.
func (r *Request) usual(payload []byte) bool {
	return flat.Members(payload, func(key string, v flat.Value) bool {
		switch key {
		case "method":
			return v.Text(&r.Method) && r.Method == "exec"
		case "language":
			return v.Text(&r.Language)
		case "cwd":
			r.Cwd = new(string)
			return v.Text(r.Cwd)
		case "codeBytes":
			return number(v, &r.CodeBytes)
		case "stdinBytes":
			return number(v, &r.StdinBytes)
		case "timeoutMs":
			return number(v, &r.TimeoutMs)
		case "memoryBytes":
			return number(v, &r.MemoryBytes)
		case "outputBytes":
			return number(v, &r.OutputBytes)
		case "keep":
			return v.Bool(&r.Keep)
		case "rehearsal":
			return v.Bool(&r.Rehearsal)
		}
		return false
	})
}

func number(v flat.Value, to **int64) bool {
	*to = new(int64)
	return v.Number(*to)
}

// check says what cannot be executed about it.
func (r *Request) check() error {
	for name, value := range r.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("%q cannot name an environment variable", name)
		}
		if strings.ContainsRune(value, 0) {
			return fmt.Errorf("the environment variable %q holds a NUL", name)
		}
	}
	if r.Cwd != nil && (*r.Cwd == "" || strings.ContainsRune(*r.Cwd, 0)) {
		return fmt.Errorf("%q cannot be a working directory", *r.Cwd)
	}
	for _, n := range []struct {
		name  string
		value *int64
		least int64
	}{
		{"codeBytes", r.CodeBytes, 0}, {"stdinBytes", r.StdinBytes, 0},
		{"timeoutMs", r.TimeoutMs, 1}, {"memoryBytes", r.MemoryBytes, 1},
		{"fileSizeBytes", r.FileSizeBytes, 0}, {"outputBytes", r.OutputBytes, 0},
	} {
		if n.value != nil && *n.value < n.least {
			return fmt.Errorf("%s cannot be %d", n.name, *n.value)
		}
	}
	if r.Processes != nil && *r.Processes < 1 {
		return fmt.Errorf("processes cannot be %d", *r.Processes)
	}
	if r.CodeBytes != nil && *r.CodeBytes > maxCode {
		return fmt.Errorf("the code has %d bytes, more than %d", *r.CodeBytes, maxCode)
	}
	return nil
}

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
	reseed      bool    // its interpreter must take fresh entropy
	ordered     time.Time
	started     bool
	began       time.Time
	beganBoot   float64
	cancelSeen  bool
	interrupted time.Time // by time limit or cancel
	grace       <-chan struct{}
	timedOut    bool
	noted       bool        // the host knows that it started
	timer       *time.Timer // its next time limit
	quiet       *time.Timer // the end of its quiet beginning
	before      cgroup.Counters
	fileSize    int64  // its limit, bytes; 0 = none
	wasFull     bool   // the disk, at its beginning
	refused     uint64 // how many connections were, at its beginning
	kept        [2]*output.Overflow
	mark        *changes.Mark // what its changes are told by

	mu        sync.Mutex
	arrived   []piece
	cancelled bool
}

// piece is input that the interpreter's goroutine has not consumed yet. Credit
// bounds how much there is.
type piece struct {
	input   int // 0 code, 1 stdin
	payload []byte
	last    bool
}

// Data takes code and stdin; it runs on the channel's reading goroutine.
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

// Note means nothing to an execution.
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

// inputError is the host's own mistake in what it sends.
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
			return &inputError{names[p.input] + " goes on after its end"}
		}
		e.received[p.input] += int64(len(p.payload))
		if want := declared[p.input]; want != nil &&
			(e.received[p.input] > *want || p.last && e.received[p.input] < *want) {
			return &inputError{fmt.Sprintf("%s has not the declared %d bytes", names[p.input], *want)}
		}
		if e.received[0] > maxCode {
			return &inputError{"the code is too large"}
		}
		if err := e.keep(p, s); err != nil {
			return fmt.Errorf("writing %s: %w", names[p.input], err)
		}
		e.complete[p.input] = p.last
		e.stream.Grant(len(p.payload))
	}
	return nil
}

// keep puts a piece where the interpreter will find it. Code that is short stays
// in memory, for the order; no stdin needs no file.
func (e *execution) keep(p piece, s *slot) error {
	fd, name, size := &s.code, "code", e.request.CodeBytes
	if p.input == 1 {
		fd, name, size = &s.stdin, "stdin", e.request.StdinBytes
	}
	if *fd < 0 {
		if p.input == 0 && len(e.code)+len(p.payload) <= inLine {
			e.code = append(e.code, p.payload...)
			return nil
		}
		if len(p.payload) == 0 {
			return nil
		}
		var err error
		if size != nil && *size > inMemory {
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

// timeout is zero when there is no time limit.
func (e *execution) timeout() time.Duration {
	if e.request.TimeoutMs == nil {
		return 0
	}
	return time.Duration(*e.request.TimeoutMs) * time.Millisecond
}

// rest says where what the host does not keep of its outputs is; mostly there
// is nothing.
func (e *execution) rest() *evidence.Rest {
	return evidence.RestOf(e.kept[0].End(), e.kept[1].End())
}

// measure adds usage and limits from the counters before and after.
func (e *execution) measure(report *evidence.Evidence, after cgroup.Counters) {
	ran := time.Since(e.ordered)
	if e.started {
		ran = time.Since(e.began)
		report.Ran(ran)
	}
	if e.timedOut {
		report.TimedOut(e.timeout(), ran)
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

// noteStarted tells the host, once, that user code has begun; the end says so
// as well.
func (e *execution) noteStarted() {
	if e.started && !e.noted {
		e.noted = true
		e.stream.Note(channel.Raw(`{"event":"started"}`))
	}
}
