package run

import "syscall"

// group holds every process of one interpreter, and what the kernel counts
// about them. In a machine it is a cgroup; tests on a host use less.
type group interface {
	// command wraps a command line so that it runs inside, as the user.
	command(argv []string) []string
	// limit sets what the processes may use together; 0 is no limit of its own.
	limit(memoryBytes int64, processes int) error
	// limitFiles sets how large a file each process may write; 0 is no limit.
	limitFiles(bytes int64)
	// begin starts the counting of an execution.
	begin()
	// counters are read at an execution's end.
	counters() counters
	// spent is what of them everybody is told, and incidents adds those that
	// only a failure can be the doing of.
	spent() counters
	incidents(*counters)
	// alone reports whether there is one thread inside and no more.
	alone() bool
	// signal reaches every process inside.
	signal(sig syscall.Signal)
	// interrupt sends SIGINT to all that is in it, and notes which program each
	// process was. With such notes it sends it only to those that are another
	// program since: a signal that came before that was handled by the old one.
	interrupt(asked map[int]string)
	// sweep kills what was started between two readings of the boot clock,
	// in seconds, except one process.
	sweep(from, to float64, except int)
	// kill ends every process inside at once.
	kill()
	// remove gives the group back; false while something inside still dies.
	remove() bool
}

// counters are cumulative, except the peak, which is since begin. What the
// kernel does not tell is -1.
type counters struct {
	cpuMicros  int64
	peakBytes  int64
	maxBytes   int64
	oomKills   int64
	maxTasks   int64
	tasksAtMax int64
}
