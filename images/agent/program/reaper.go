package program

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// Reaper starts processes and collects every exit, including those of orphans:
// the agent is the machine's first process, and nothing else in it may wait for
// a process.
type Reaper struct {
	mu     sync.Mutex
	owners map[int]chan<- syscall.WaitStatus
}

// NewReaper returns a reaper, which collects exits once Run runs.
func NewReaper() *Reaper {
	return &Reaper{owners: map[int]chan<- syscall.WaitStatus{}}
}

// Run collects exits for each SIGCHLD, until the channel is closed.
func (r *Reaper) Run(children <-chan os.Signal) {
	for range children {
		r.collect()
	}
}

func (r *Reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if owner := r.owners[pid]; owner != nil {
			delete(r.owners, pid)
			owner <- status
		}
	}
}

// Start starts a process. Its status arrives once on the channel, which never
// blocks the reaper.
func (r *Reaper) Start(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	// While the lock is held, an exit cannot be collected before its owner is
	// known.
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	status := make(chan syscall.WaitStatus, 1)
	r.owners[pid] = status
	return pid, status, nil
}
