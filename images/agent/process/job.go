package process

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/program"
	"exec-sandbox/agent/refusals"
)

// launch is how a caller's program is started.
type launch struct {
	Sandbox  *cgroup.Sandbox
	Disk     *disk.Disk
	Refusals *refusals.Tracker

	Name        string // of its cgroup
	User        program.User
	Argv        []string
	Cwd         string
	Env         map[string]string // overrides the usual one
	Files       []int             // stdin, stdout, stderr; or one terminal for all of them
	Terminal    bool              // stdin is its controlling terminal
	MemoryBytes int64
	Processes   int

	FileSizeBytes int64
}

// job is a caller's program with everything that it starts, in a cgroup of its
// own: signalled, measured and killed as one.
type job struct {
	pid  int
	exit <-chan syscall.WaitStatus // its status, once

	group  *cgroup.Group
	report *os.File
	before cgroup.Counters
	began  time.Time

	disk     *disk.Disk
	fileSize int64
	wasFull  bool
	refusals *refusals.Tracker
	refused  uint64 // how many connections were refused before
}

// start starts a program, or leaves nothing behind.
func (l launch) start(reaper *program.Reaper) (*job, error) {
	group, err := l.Sandbox.Group(l.Name)
	if err != nil {
		return nil, err
	}
	j := &job{began: time.Now(), group: group, disk: l.Disk, fileSize: l.FileSizeBytes, wasFull: l.Disk.IsFull()}
	j.refusals, j.refused = l.Refusals, l.Refusals.Mark()
	if err := j.start(reaper, l); err != nil {
		group.Remove()
		return nil, err
	}
	return j, nil
}

func (j *job) start(reaper *program.Reaper, l launch) error {
	if err := j.group.Limit(l.MemoryBytes, l.Processes); err != nil {
		return err
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer unix.Close(pipe[1])
	_ = unix.SetNonblock(pipe[0], true)
	j.report = os.NewFile(uintptr(pipe[0]), "report")
	j.group.Begin()
	j.before = j.group.Counters()
	const report = 3 // the first after the standard ones
	var files []uintptr
	for i := 0; i < report; i++ {
		files = append(files, uintptr(l.Files[i%len(l.Files)]))
	}
	start := program.Step{Procs: j.group.Procs(), User: l.User, FileSize: l.FileSizeBytes, Cwd: l.Cwd, Report: report}
	var err error
	j.pid, j.exit, err = reaper.Start(start.Command(l.Argv), &syscall.ProcAttr{
		Env:   program.Environment(l.User, l.Env),
		Files: append(files, uintptr(pipe[1])),
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: l.Terminal},
	})
	if err != nil {
		_ = j.report.Close()
	}
	return err
}

// started waits until the process has become the program; otherwise it returns
// why not.
func (j *job) started() *program.Failure {
	defer j.report.Close()
	const most = 16 << 10
	text, _ := io.ReadAll(io.LimitReader(j.report, most))
	return program.ParseFailure(text) // executing it closed the pipe
}

// signal reaches every process of the program.
func (j *job) signal(sig syscall.Signal) {
	if sig == unix.SIGKILL {
		j.group.Kill() // no process escapes by forking
		return
	}
	j.group.Signal(sig)
}

// gone reports whether no process of the program is left.
func (j *job) gone() bool { return len(j.group.Members()) == 0 }

// remove removes the cgroup; false while a process inside still lives.
func (j *job) remove() bool { return j.group.Remove() }

// evidence is what is known about a program that has ended. A timeout is given
// if it ended the program.
func (j *job) evidence(status syscall.WaitStatus, timeout *time.Duration) *evidence.Evidence {
	e := &evidence.Evidence{State: "kept"}
	e.FromStatus(status)
	wall := time.Since(j.began)
	e.Ran(wall)
	if timeout != nil {
		e.TimedOut(*timeout, wall)
	}
	e.Count(j.before, j.group.Counters())
	e.Storage(j.disk, j.fileSize, j.wasFull)
	if *e.ExitCode != 0 {
		e.Refused = j.refusals.Decided(j.refused, refusals.Cause{Processes: []int{j.pid}, Status: *e.ExitCode})
	}
	e.Fill()
	return e
}
