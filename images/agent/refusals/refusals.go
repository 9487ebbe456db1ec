// Package refusals finds out whether an execution failed because a connection
// was refused. It records which connections were refused, and to which process.
//
// While a connect waits for its answer, its process is found by the socket that
// it has open, and its ancestors with it. From then on the kernel reports every
// process that fails. A refusal decided an execution if the refused process
// failed, and then each ancestor up to the one whose status the execution has.
// A shell passes on the status of a command that failed; a shell that ends with
// another status has handled the failure.
package refusals

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxMet and maxFailed limit how many are remembered, the latest ones.
	maxMet     = 256
	maxFailed  = 4096
	maxWaiting = 16
	maxDepth   = 32
)

// Refusal is a connection that was refused.
type Refusal struct {
	Host string `json:"host"`
	Port uint16 `json:"port"`
}

// member is a process in the line from the refused one, which is the first, up
// to the agent.
type member struct {
	pid   int
	shell bool
}

type met struct {
	refusal Refusal
	number  uint64
	at      uint64 // same clock as failure.at
	line    []member
}

// failure is the end of a process that failed.
type failure struct {
	at     uint64 // ns since the boot
	status int    // as a shell reports it
}

// Tracker records refusals; a nil one records none.
type Tracker struct {
	groups string // the directory of the cgroups whose processes count
	count  atomic.Uint64

	waiting atomic.Int32
	mu      sync.Mutex
	events  events
	met     []met
	failed  map[int]failure
}

// New returns a tracker of the processes in the cgroups of a directory.
func New(groups string) *Tracker {
	return &Tracker{groups: groups, failed: map[int]failure{}, events: events{fd: -1}}
}

// Connection is one end of a TCP connection, as the kernel lists it.
type Connection struct {
	Host   string // which host the program asked for
	Local  uint16
	Target [4]byte
	Port   uint16
}

// Record records a refusal. It is called before the process gets its answer.
func (t *Tracker) Record(c Connection) {
	if t == nil {
		return
	}
	// Finding the process takes a few milliseconds; a program with very many
	// refusals at once need not be found.
	if t.waiting.Add(1) > maxWaiting {
		t.waiting.Add(-1)
		return
	}
	defer t.waiting.Add(-1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.events.listen() {
		return
	}
	t.drain()
	pid := holder(filepath.Join(t.groups, "*", "cgroup.procs"), c)
	if pid == 0 {
		return
	}
	if len(t.met) >= maxMet {
		t.met = append(t.met[:0], t.met[1:]...)
	}
	t.met = append(t.met, met{Refusal{c.Host, c.Port}, t.count.Add(1), now(), lineOf(pid)})
}

// Mark is the present moment, for Decided.
func (t *Tracker) Mark() uint64 {
	if t == nil {
		return 0
	}
	return t.count.Load()
}

// Cause says where an execution's status comes from: from one of the Processes,
// or from a child of Parent that ended with Status.
type Cause struct {
	Processes []int
	Parent    int
	Status    int
}

// Decided returns the latest refusal after a mark that decided an execution,
// nil when none did.
func (t *Tracker) Decided(mark uint64, cause Cause) *Refusal {
	if t == nil || t.count.Load() == mark {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drain()
	for n := len(t.met) - 1; n >= 0 && t.met[n].number > mark; n-- {
		t.settle(&t.met[n], cause)
		if t.met[n].decided(cause, t.failed) {
			found := t.met[n].refusal
			return &found
		}
	}
	return nil
}

// settle waits for the kernel's reports on processes that are ending. A
// program's files are closed before its end is reported, and that alone may
// make its parent end. Called with mu held.
func (t *Tracker) settle(m *met, cause Cause) {
	for tries := 0; tries < 200; tries++ {
		pending := false
		for _, member := range m.line {
			if cause.final(member.pid) {
				break
			}
			if _, known := t.failed[member.pid]; !known {
				pending = pending || ending(member.pid, tries)
			}
		}
		if !pending {
			return
		}
		time.Sleep(time.Millisecond)
		t.drain()
	}
}

func (c Cause) final(pid int) bool {
	for _, own := range c.Processes {
		if own == pid {
			return true
		}
	}
	return false
}

func (m *met) decided(cause Cause, failed map[int]failure) bool {
	passed := 0 // status of the previous member
	for i, member := range m.line {
		final := cause.final(member.pid)
		end, known := failed[member.pid]
		known = known && end.at >= m.at
		status := end.status
		if final {
			status, known = cause.Status, true
		}
		if !known || status == 0 || i > 0 && member.shell && status != passed {
			return false
		}
		if final || cause.Parent != 0 && i+1 < len(m.line) && m.line[i+1].pid == cause.Parent && status == cause.Status {
			return true
		}
		passed = status
	}
	return false
}

// drain reads the failures that the kernel has reported. Called with mu held.
func (t *Tracker) drain() {
	t.events.take(func(pid int, f failure) {
		if len(t.failed) >= maxFailed {
			t.failed = map[int]failure{}
		}
		t.failed[pid] = f
	})
}
