package run

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ChildCommand is the agent's own first argument when it runs as the short step
// between its fork and a user's program.
const ChildCommand = "exec-child"

// childArgs is the command line of that step.
func childArgs(procs string, user User, argv []string) []string {
	step := []string{"/proc/self/exe", ChildCommand, procs, strconv.Itoa(user.UID), strconv.Itoa(user.GID)}
	return append(step, argv...)
}

// Child is that step: it enters the cgroup before the program exists, gives up
// every privilege and the agent's priority, and becomes the program. It returns
// only when that failed.
func Child(args []string) error {
	if len(args) < 4 {
		return fmt.Errorf("%s: too few arguments", ChildCommand)
	}
	procs, argv := args[0], args[3:]
	uid, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("reading the uid: %w", err)
	}
	gid, err := strconv.Atoi(args[2])
	if err != nil {
		return fmt.Errorf("reading the gid: %w", err)
	}
	// Priority and no_new_privs belong to the thread that becomes the program.
	runtime.LockOSThread()
	if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
		return fmt.Errorf("entering the cgroup: %w", err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0); err != nil {
		return fmt.Errorf("resetting the OOM score: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 0); err != nil {
		return fmt.Errorf("resetting the priority: %w", err)
	}
	if err := setLimits(); err != nil {
		return err
	}
	if err := syscall.Setgroups([]int{}); err != nil {
		return fmt.Errorf("dropping groups: %w", err)
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("becoming group %d: %w", gid, err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("becoming user %d: %w", uid, err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return fmt.Errorf("becoming %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
}

func setLimits() error {
	limits := []struct {
		resource int
		value    unix.Rlimit
	}{
		{unix.RLIMIT_CORE, unix.Rlimit{}},
		{unix.RLIMIT_NOFILE, unix.Rlimit{Cur: 1024, Max: 65536}},
		// Processes are counted by the cgroup, not for the user as a whole.
		{unix.RLIMIT_NPROC, unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}},
	}
	for _, l := range limits {
		if err := unix.Setrlimit(l.resource, &l.value); err != nil {
			return fmt.Errorf("setting limit %d: %w", l.resource, err)
		}
	}
	return nil
}
