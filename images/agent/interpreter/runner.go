// Package interpreter keeps warm interpreters and runs executions in them, one
// after the other in each.
package interpreter

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/output"
	"exec-sandbox/agent/program"
	"exec-sandbox/agent/refusals"
)

// Session is what a host's greeting sets for everything that runs from then on.
type Session struct {
	program.Defaults
	DiskBytes int64 // for all programs together; 0 = as much as there is
	Secret    []byte
	Unique    bool // interpreters that already have fresh entropy keep it

	generation uint64
}

// Config is what differs between a machine and a test on a host.
type Config struct {
	Directory    string // where interpreters have their directories
	Spill        string // for large inputs, on the disk
	Outputs      *output.Directory
	Disk         *disk.Disk
	Changes      *changes.Tracker
	Refusals     *refusals.Tracker
	User         program.User
	Interpreters []Interpreter
	Reaper       *program.Reaper
	Group        func(name string) (Group, error)
	Command      func(procs string, argv []string) []string // starts an interpreter in a group, as the user
	Log          func(format string, args ...any)
	Debug        bool // interpreters' own errors go to the console
}

// Runner has all interpreters.
type Runner struct {
	config       Config
	null, errors int
	interpreters map[string]*interpreter
	background   output.Background
	ended        sync.WaitGroup

	mu        sync.Mutex
	session   *Session
	ownLimits bool // an interpreter has other limits than the session
}

// New returns a runner without any process.
func New(config Config) (*Runner, error) {
	r := &Runner{config: config, interpreters: map[string]*interpreter{}, session: &Session{}}
	for _, d := range []string{config.Directory, config.Spill} {
		// Users may enter a path below, but not list the directory.
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("making %s: %w", d, err)
		}
	}
	var err error
	if r.null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("opening /dev/null: %w", err)
	}
	r.errors = r.null
	if config.Debug {
		if fd, err := unix.Open("/dev/console", unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0); err == nil {
			r.errors = fd
		}
	}
	return r, nil
}

// Attach sets the channel on which background output is sent.
func (r *Runner) Attach(conn *channel.Conn) { r.background.Conn = conn }

// Start starts every interpreter and waits until all are warm.
func (r *Runner) Start() error {
	for _, program := range r.config.Interpreters {
		i := newInterpreter(r, program)
		r.interpreters[program.Name] = i
		r.ended.Add(1)
		go func() { // ended by Close
			defer r.ended.Done()
			i.loop()
		}()
	}
	for _, i := range r.interpreters {
		if err := <-i.warm; err != nil {
			return err
		}
	}
	return nil
}

// Close ends every interpreter.
func (r *Runner) Close() {
	for _, i := range r.interpreters {
		close(i.stop)
	}
	r.ended.Wait()
	_ = unix.Close(r.null)
}

// Languages are the ones whose interpreter is installed.
func (r *Runner) Languages() []string {
	names := []string{}
	for _, l := range Languages {
		if r.interpreters[l.Interpreter] != nil {
			names = append(names, l.Name)
		}
	}
	return names
}

// Defaults are those of the current session.
func (r *Runner) Defaults() program.Defaults { return r.current().Defaults }

func (r *Runner) current() *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

// Greet applies a host's settings. From then on no interpreter runs anything
// before it has used fresh entropy: of this greeting or, if that is unique, of
// the one before.
func (r *Runner) Greet(s Session) error {
	r.mu.Lock()
	s.generation = r.session.generation
	if !s.Unique {
		s.generation++
	}
	same := !r.ownLimits && s.MemoryBytes == r.session.MemoryBytes && s.Processes == r.session.Processes
	r.session = &s
	r.ownLimits = r.ownLimits && same
	r.mu.Unlock()
	r.background.Greeted()
	if err := r.config.Disk.Reserve(s.DiskBytes); err != nil {
		return err
	}
	if same {
		return nil
	}
	return r.each(2*time.Second, func(i *interpreter) error {
		if i.process == nil {
			return nil // its next process starts with them
		}
		return i.process.group.Limit(s.MemoryBytes, s.Processes)
	})
}

// noteOwnLimits notes that an interpreter got limits of its own: the next greeting
// sets all limits again.
func (r *Runner) noteOwnLimits() {
	r.mu.Lock()
	r.ownLimits = true
	r.mu.Unlock()
}

// AddEnv adds variables to the environment of everything that runs from now on.
// Variables that are already set win.
func (r *Runner) AddEnv(env map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := *r.session
	s.Env = merge(env, s.Env)
	r.session = &s
}

// space returns how many bytes of the file system with the executions are in
// use, and its size.
func (r *Runner) space() (used, all int64) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.config.Directory, &st); err != nil {
		return 0, 0
	}
	return int64(st.Blocks-st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize
}

var errBusy = errors.New("busy")

// each runs f once on every interpreter's goroutine and waits, within bounds.
func (r *Runner) each(within time.Duration, f func(*interpreter) error) error {
	answers := make(chan error, len(r.interpreters))
	for _, i := range r.interpreters {
		i := i
		i.post(func() { answers <- f(i) })
	}
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for range r.interpreters {
		select {
		case err := <-answers:
			if err != nil {
				return err
			}
		case <-timeout.C:
			return errBusy
		}
	}
	return nil
}

// Exec serves the method exec.
func (r *Runner) Exec(s *channel.Stream, payload []byte) error {
	request, err := Decode(payload)
	if err != nil {
		return s.Invalid(err)
	}
	var owner *interpreter
	for _, l := range Languages {
		if l.Name == request.Language {
			owner = r.interpreters[l.Interpreter]
		}
	}
	if owner == nil {
		s.Reset("unsupported", fmt.Sprintf("no language %q in this image", request.Language))
		return nil
	}
	e := &execution{request: request, stream: s, epoch: r.background.Conn.Epoch(), owner: owner}
	e.complete[1] = request.StdinBytes != nil && *request.StdinBytes == 0
	s.Receive(e)
	owner.post(func() { owner.queue = append(owner.queue, e) })
	return nil
}

// Settle waits until every interpreter is idle and prepared, then frees memory
// and writes cached data: every clone starts in this state.
func (r *Runner) Settle(within time.Duration) error {
	for deadline := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		err := r.each(within, func(i *interpreter) error {
			if i.current != nil || len(i.queue) > 0 || i.process == nil || !i.process.ready || i.slot == nil {
				return errBusy
			}
			return nil
		})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("settling: %w", err)
		}
	}
	debug.FreeOSMemory()
	unix.Sync()
	return nil
}
