package interpreter

import (
	"syscall"

	"exec-sandbox/agent/cgroup"
)

// Group holds every process of one interpreter, and what the kernel counts
// about them. In a machine it is a cgroup; tests on a host use less.
type Group interface {
	// Procs is the file to which a process writes in order to enter.
	Procs() string
	// Limit sets what the processes may use together; 0 is no limit of its own.
	Limit(memoryBytes int64, processes int) error
	// LimitFiles sets how large a file each process may write; 0 is no limit.
	LimitFiles(bytes int64)
	// Begin starts the counting of an execution.
	Begin()
	// Counters are read at an execution's end.
	Counters() cgroup.Counters
	// Spent is what of them everybody is told, and Incidents adds those that
	// only a failure can be the doing of.
	Spent() cgroup.Counters
	Incidents(*cgroup.Counters)
	// Alone reports whether there is one thread inside and no more.
	Alone() bool
	// Signal reaches every process inside.
	Signal(sig syscall.Signal)
	// Interrupt sends SIGINT to all that is in it, and notes which program each
	// process was. With such notes it sends it only to those that are another
	// program since: a signal that came before that was handled by the old one.
	Interrupt(asked map[int]string)
	// Sweep kills what was started between two readings of the boot clock,
	// in seconds, except one process.
	Sweep(from, to float64, except int)
	// Kill ends every process inside at once.
	Kill()
	// Remove gives the group back; false while something inside still dies.
	Remove() bool
}
