package interpreter

import (
	"syscall"

	"exec-sandbox/agent/cgroup"
)

// Group has every process of one interpreter. In a machine it is a
// *cgroup.Group, where the methods are explained; tests on a host use less.
type Group interface {
	Procs() string
	Limit(memoryBytes int64, processes int) error
	LimitFiles(bytes int64)
	Begin()
	Counters() cgroup.Counters
	Spent() cgroup.Counters
	Incidents(*cgroup.Counters)
	Alone() bool
	Signal(sig syscall.Signal)
	Interrupt(asked map[int]string)
	Sweep(from, to float64, except int)
	Kill()
	Remove() bool
}
