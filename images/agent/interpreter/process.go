package interpreter

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/program"
	"exec-sandbox/agent/quick"
)

// process is one life of an interpreter. The next one gets a fresh directory
// and a fresh group.
type process struct {
	name      string
	pid       int
	exit      <-chan syscall.WaitStatus
	group     Group
	directory string
	base      int // the directory, open
	in        int // where orders are written
	said      *lines

	ready      bool
	used       bool   // it has a user's state
	generation uint64 // of the session for which it was seeded
}

// launch starts an interpreter.
func (i *interpreter) launch(session *Session) (p *process, err error) {
	i.count++
	name := i.program.Name + "-" + strconv.Itoa(i.count)
	p = &process{name: name, directory: filepath.Join(i.runner.config.Directory, name), base: -1, in: -1}
	defer func() {
		if err != nil {
			p.close()
			p.kill()
			p.remove()
		}
	}()
	user := i.runner.config.User
	if err := os.Mkdir(p.directory, 0o700); err != nil {
		return p, fmt.Errorf("making its directory: %w", err)
	}
	p.base, err = unix.Open(p.directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, fmt.Errorf("opening its directory: %w", err)
	}
	for _, fifo := range []string{"in", "out"} {
		if err := makeFIFO(p.base, fifo, user); err != nil {
			return p, err
		}
	}
	p.in, err = unix.Open(filepath.Join(p.directory, "in"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, fmt.Errorf("opening its input: %w", err)
	}
	p.said, err = openLines(filepath.Join(p.directory, "out"), i.poke)
	if err != nil {
		return p, fmt.Errorf("opening its output: %w", err)
	}
	if err := unix.Fchown(p.base, user.UID, user.GID); err != nil {
		return p, fmt.Errorf("changing the owner of its directory: %w", err)
	}
	group, err := i.runner.config.Group(name)
	if err != nil {
		return p, err
	}
	p.group = group // not before: an interface that holds a nil *cgroup.Group is not nil
	if err := p.group.Limit(session.MemoryBytes, session.Processes); err != nil {
		return p, err
	}
	argv := append(append([]string(nil), i.program.Argv...), p.directory)
	var preload map[string]string
	if i.program.Preload != "" {
		preload = map[string]string{"LD_PRELOAD": i.program.Preload}
	}
	null := uintptr(i.runner.null)
	p.pid, p.exit, err = i.runner.config.Reaper.Start(i.runner.config.Command(p.group.Procs(), argv), &syscall.ProcAttr{
		Dir: user.Home,
		// A session's environment is sent with each execution, because an
		// interpreter may live on in another session, which must not see it.
		Env:   program.Environment(user, preload),
		Files: []uintptr{null, null, uintptr(i.runner.errors)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return p, err
	}
	go p.said.listen() // ended by close
	return p, nil
}

// order sends the interpreter a message. It never waits: an interpreter whose
// FIFO is full is not reading.
func (p *process) order(line []byte) error {
	_, err := quick.Write(p.in, line)
	return err
}

func (p *process) kill() {
	if p.group != nil {
		p.group.Kill()
	}
}

// close closes the files of a dead interpreter.
func (p *process) close() {
	if p.said != nil {
		p.said.close()
	}
	for _, fd := range []int{p.base, p.in} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// remove removes the group and the directory of a dead interpreter; false while
// a process in the group still lives.
func (p *process) remove() bool {
	if p.group != nil && !p.group.Remove() {
		return false
	}
	_ = os.RemoveAll(p.directory)
	return true
}
