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

// step is what that step does before it becomes the program.
type step struct {
	procs string // where it enters its cgroup
	user  User
	// For a caller's program only: where it starts, as the user, and the
	// descriptor that says why it cannot. An interpreter starts where it is.
	cwd    string
	report int
}

// command is the command line of the step.
func (s step) command(argv []string) []string {
	head := []string{
		"/proc/self/exe", ChildCommand, s.procs,
		strconv.Itoa(s.user.UID), strconv.Itoa(s.user.GID), s.cwd, strconv.Itoa(s.report),
	}
	return append(head, argv...)
}

func parseStep(args []string) (s step, argv []string, err error) {
	if len(args) < 6 {
		return s, nil, fmt.Errorf("%s: too few arguments", ChildCommand)
	}
	s.procs, s.cwd = args[0], args[3]
	for i, n := range map[int]*int{1: &s.user.UID, 2: &s.user.GID, 4: &s.report} {
		if *n, err = strconv.Atoi(args[i]); err != nil {
			return s, nil, fmt.Errorf("reading an argument: %w", err)
		}
	}
	return s, args[5:], nil
}

// Child is that step: it enters the cgroup before the program exists, gives up
// every privilege and the agent's priority, and becomes the program. It returns
// only when that failed.
func Child(args []string) error {
	s, argv, err := parseStep(args)
	if err != nil {
		return err
	}
	// Priority and no_new_privs belong to the thread that becomes the program.
	runtime.LockOSThread()
	err = s.enter()
	if s.report == 0 {
		if err == nil {
			err = syscall.Exec(argv[0], argv, os.Environ())
		}
		return fmt.Errorf("becoming %s: %w", argv[0], err)
	}
	// The program must not have what it could tell lies with.
	unix.CloseOnExec(s.report)
	failure := &Failure{Kind: FailedSetup, Message: fmt.Sprint(err)}
	if err == nil {
		failure = become(s.cwd, argv)
	}
	failure.write(s.report)
	os.Exit(127)
	return nil
}

func (s step) enter() error {
	if err := os.WriteFile(s.procs, []byte("0"), 0); err != nil {
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
	if err := syscall.Setresgid(s.user.GID, s.user.GID, s.user.GID); err != nil {
		return fmt.Errorf("becoming group %d: %w", s.user.GID, err)
	}
	if err := syscall.Setresuid(s.user.UID, s.user.UID, s.user.UID); err != nil {
		return fmt.Errorf("becoming user %d: %w", s.user.UID, err)
	}
	if s.user.UID == 0 {
		return nil // has every privilege there is already
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
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
