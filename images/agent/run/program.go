package run

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/program"
	"exec-sandbox/agent/refusals"
)

// Launch is how a caller's program is started.
type Launch struct {
	Sandbox  *cgroup.Sandbox
	Disk     *disk.Disk
	Refusals *refusals.Tracker

	Name        string // of its cgroup
	User        program.User
	Argv        []string
	Cwd         string
	Env         map[string]string // over the usual one
	Files       []int             // stdin, stdout, stderr; or the one terminal that is all of them
	Terminal    bool              // stdin is its controlling terminal
	MemoryBytes int64
	Processes   int

	FileSizeBytes int64
}

// Program is one program of a caller's with all that it starts, in a cgroup of
// its own: signalled, measured and killed as one.
type Program struct {
	PID  int
	Exit <-chan syscall.WaitStatus // its status, once

	group  *cgroup.Group
	report *os.File
	before cgroup.Counters
	began  time.Time

	disk     *disk.Disk
	fileSize int64
	wasFull  bool
	refusals *refusals.Tracker
	refused  uint64 // how many there were at its beginning
}

// Evidence is END's payload.
type Evidence = evidence

// Start starts a program, or leaves nothing behind.
func (l Launch) Start(reaper *program.Reaper) (*Program, error) {
	group, err := l.Sandbox.Group(l.Name)
	if err != nil {
		return nil, err
	}
	p := &Program{began: time.Now(), group: group, disk: l.Disk, fileSize: l.FileSizeBytes, wasFull: l.Disk.IsFull()}
	p.refusals, p.refused = l.Refusals, l.Refusals.Mark()
	if err := p.start(reaper, l); err != nil {
		group.Remove()
		return nil, err
	}
	return p, nil
}

func (p *Program) start(reaper *program.Reaper, l Launch) error {
	if err := p.group.Limit(l.MemoryBytes, l.Processes); err != nil {
		return err
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer unix.Close(pipe[1])
	_ = unix.SetNonblock(pipe[0], true)
	p.report = os.NewFile(uintptr(pipe[0]), "report")
	p.group.Begin()
	p.before = p.group.Counters()
	const report = 3 // the first after the standard ones
	var files []uintptr
	for i := 0; i < report; i++ {
		files = append(files, uintptr(l.Files[i%len(l.Files)]))
	}
	start := program.Step{Procs: p.group.Procs(), User: l.User, FileSize: l.FileSizeBytes, Cwd: l.Cwd, Report: report}
	var err error
	p.PID, p.Exit, err = reaper.Start(start.Command(l.Argv), &syscall.ProcAttr{
		Env:   program.Environment(l.User, l.Env),
		Files: append(files, uintptr(pipe[1])),
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: l.Terminal},
	})
	if err != nil {
		_ = p.report.Close()
	}
	return err
}

// Started waits until the process has become the program, or for the reason
// why it did not.
func (p *Program) Started() *program.Failure {
	defer p.report.Close()
	const most = 16 << 10
	text, _ := io.ReadAll(io.LimitReader(p.report, most))
	return program.ParseFailure(text) // executing it closed the pipe
}

// Signal reaches every process of the program.
func (p *Program) Signal(sig syscall.Signal) {
	if sig == unix.SIGKILL {
		p.group.Kill() // nobody escapes by forking
		return
	}
	p.group.Signal(sig)
}

// Gone reports whether no process of the program is left.
func (p *Program) Gone() bool { return len(p.group.Members()) == 0 }

// Remove gives the cgroup back; false while something inside still lives.
func (p *Program) Remove() bool { return p.group.Remove() }

// Evidence is what is known about a program that has ended. A timeout is given
// when it was what ended the program.
func (p *Program) Evidence(status syscall.WaitStatus, timeout *time.Duration) *Evidence {
	e := &evidence{State: "kept"}
	e.fromStatus(status)
	e.Usage.WallMs = milliseconds(time.Since(p.began))
	if timeout != nil {
		e.Limits = append(e.Limits, limitHit{"time", timeout.Milliseconds(), int64(e.Usage.WallMs)})
	}
	e.count(p.before, p.group.Counters())
	e.storage(p.disk, p.fileSize, p.wasFull)
	if *e.ExitCode != 0 {
		e.Refused = p.refusals.Decided(p.refused, refusals.Cause{Processes: []int{p.PID}, Status: *e.ExitCode})
	}
	e.fill()
	return e
}
