// Package refusals knows which connections of the guest's programs were refused
// and who met each refusal, so that the end of an execution can be told to be
// due to one.
//
// While a connect waits for its answer, its process is found by the socket that
// it holds, and with it its ancestors. From then on the kernel reports every
// process that fails. A refusal decided an execution when the process that met
// it failed, and after it each ancestor up to the one whose status the
// execution's is. A shell hands on the status of a command that failed; a shell
// that ends with another one has dealt with the failure.
package refusals

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxMet and maxFailed bound what is remembered, the latest of each.
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

// member is a process between the one that met a refusal, which is the first,
// and the agent.
type member struct {
	pid   int
	shell bool
}

type met struct {
	refusal Refusal
	number  uint64
	at      uint64 // by the clock of failure.at
	line    []member
}

// failure is the end of a process that did not succeed.
type failure struct {
	at     uint64 // ns since the boot
	status int    // as a shell tells it
}

// Tracker gathers refusals; a nil one gathers none.
type Tracker struct {
	groups string // the directory of the cgroups whose processes count
	count  atomic.Uint64

	waiting atomic.Int32
	mu      sync.Mutex
	events  events
	met     []met
	failed  map[int]failure
}

// New returns the tracker of the processes in the cgroups of a directory.
func New(groups string) *Tracker {
	return &Tracker{groups: groups, failed: map[int]failure{}, events: events{fd: -1}}
}

// Connection is an end of a TCP connection, as the kernel lists it.
type Connection struct {
	Host   string // whom the program wanted
	Local  uint16
	Target [4]byte
	Port   uint16
}

// Record remembers a refusal before its process learns of it.
func (t *Tracker) Record(c Connection) {
	if t == nil {
		return
	}
	// Looking costs a few milliseconds; who floods gets no better answer by it.
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

// Mark is a moment that refusals can be told to be after.
func (t *Tracker) Mark() uint64 {
	if t == nil {
		return 0
	}
	return t.count.Load()
}

// Cause says what an execution's status is told by: it is that of one of its
// Processes, or that of a child of Parent ended with Status.
type Cause struct {
	Processes []int
	Parent    int
	Status    int
}

// Decided is the latest refusal after a mark that decided an execution, nil when
// none did.
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

// settle waits for the reports on processes that are ending. A program's files
// are closed before its end is reported, and its parent may end for that alone.
// Called with mu held.
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
	passed := 0 // the status of the member before
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

// drain takes the failures that the kernel has reported. Called with mu held.
func (t *Tracker) drain() {
	t.events.take(func(pid int, f failure) {
		if len(t.failed) >= maxFailed {
			t.failed = map[int]failure{}
		}
		t.failed[pid] = f
	})
}
