package interpreter

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/output"
	"exec-sandbox/agent/program"
	"exec-sandbox/agent/quick"
)

const (
	// maxInOrder is the largest code, in bytes, that may be sent in the order
	// itself; larger code is sent in a file of the slot.
	maxInOrder = 3 << 10
	// maxInMemory is the largest input, in bytes, that is kept on /run; larger
	// ones go to the disk, because the pages of /run cannot be reclaimed.
	maxInMemory = 256 << 10
	// maxEvidence is how many bytes of evidence an interpreter may leave.
	maxEvidence = 4 << 20
)

// slot is the directory of an execution, prepared while the interpreter is
// idle. User code owns the directory and can change everything in it, so the
// agent trusts no name in it. A slot that is clean after its execution serves
// the next one as well.
type slot struct {
	name           string
	base           int // the interpreter's directory
	basePath       string
	directory      int
	code, stdin    int // -1 while there is no such file
	stdout, stderr *output.Pipe
	littered       bool     // files were made in it
	spilled        []string // inputs that are on the disk
}

// spilled numbers inputs on the disk, across all interpreters.
var spilled atomic.Uint64

// newSlot prepares a slot in the interpreter's directory.
func newSlot(base int, basePath string, number int, user program.User) (*slot, error) {
	s := &slot{name: strconv.Itoa(number), base: base, basePath: basePath, directory: -1, code: -1, stdin: -1}
	if err := s.prepare(user); err != nil {
		s.discard()
		return nil, fmt.Errorf("preparing an execution: %w", err)
	}
	return s, nil
}

func (s *slot) prepare(user program.User) (err error) {
	if err := quick.MakeDirectory(s.base, s.name, 0o700); err != nil {
		return fmt.Errorf("making its directory: %w", err)
	}
	s.directory, err = quick.Open(s.base, s.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("opening its directory: %w", err)
	}
	for _, f := range []struct {
		pipe **output.Pipe
		name string
	}{{&s.stdout, "stdout"}, {&s.stderr, "stderr"}} {
		if err := makeFIFO(s.directory, f.name, user); err != nil {
			return err
		}
		if *f.pipe, err = output.OpenPipe(s.directory, f.name); err != nil {
			return fmt.Errorf("opening its %s: %w", f.name, err)
		}
	}
	// Last, so that user code could not have put anything there.
	if err := quick.Chown(s.directory, "", user.UID, user.GID); err != nil {
		return fmt.Errorf("changing the owner of its directory: %w", err)
	}
	return nil
}

// file makes a file in the slot, in place of anything that user code may have
// put there.
func (s *slot) file(name string) (int, error) {
	s.littered = true
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
	fd, err := quick.Open(s.directory, name, flags, 0o644)
	if err == unix.EEXIST {
		_ = quick.Remove(s.directory, name, 0)
		fd, err = quick.Open(s.directory, name, flags, 0o644)
	}
	if err != nil {
		return -1, fmt.Errorf("making its %s: %w", name, err)
	}
	return fd, nil
}

// write makes a file with its content in the slot.
func (s *slot) write(name string, content []byte) error {
	fd, err := s.file(name)
	if err != nil {
		return err
	}
	defer quick.Close(fd)
	return quick.WriteAll(fd, content)
}

// spill makes a file on the disk, with a link to it in the slot.
func (s *slot) spill(directory, name string) (int, error) {
	s.littered = true
	path := filepath.Join(directory, strconv.FormatUint(spilled.Add(1), 10))
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return -1, fmt.Errorf("making a large input: %w", err)
	}
	s.spilled = append(s.spilled, path)
	_ = quick.Remove(s.directory, name, 0)
	if err := unix.Symlinkat(path, s.directory, name); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("linking the input %s: %w", name, err)
	}
	return fd, nil
}

// free reports whether the slot can serve another execution: it has no files,
// and nothing can still write to its pipes. If the interpreter itself has them
// open (held), it must be the only process.
func (s *slot) free(g Group, held bool) bool {
	if s.littered || !s.stdout.Empty() || !s.stderr.Empty() {
		return false
	}
	if held {
		return g.Alone()
	}
	return s.stdout.HungUp() && s.stderr.HungUp()
}

// evidence reads what the interpreter left about the execution.
func (s *slot) evidence() ([]byte, error) {
	fd, err := quick.Open(s.directory, "evidence", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the evidence: %w", err)
	}
	defer quick.Close(fd)
	var out []byte
	buffer := make([]byte, 4096)
	for {
		n, err := quick.Read(fd, buffer)
		if err != nil {
			return nil, fmt.Errorf("reading the evidence: %w", err)
		}
		out = append(out, buffer[:n]...)
		if n < len(buffer) { // the end: this is a regular file
			return out, nil
		}
		if len(out) > maxEvidence {
			return nil, fmt.Errorf("the evidence is larger than %d bytes", maxEvidence)
		}
	}
}

// remove removes the execution's files. The pipes stay open.
func (s *slot) remove() {
	// Removing known names is quick; RemoveAll is only for what users added.
	if s.directory >= 0 {
		for _, name := range []string{"code", "stdin", "settings", "settings.sh", "stdout", "stderr", "evidence"} {
			_ = quick.Remove(s.directory, name, 0)
		}
	}
	for _, fd := range []int{s.directory, s.code, s.stdin} {
		if fd >= 0 {
			quick.Close(fd)
		}
	}
	if err := quick.Remove(s.base, s.name, unix.AT_REMOVEDIR); err != nil {
		_ = os.RemoveAll(filepath.Join(s.basePath, s.name))
	}
	for _, path := range s.spilled {
		_ = os.Remove(path)
	}
}

// discard removes a slot that was never used.
func (s *slot) discard() {
	if s.stdout != nil {
		s.stdout.Close()
	}
	if s.stderr != nil {
		s.stderr.Close()
	}
	s.remove()
}

func makeFIFO(directory int, name string, user program.User) error {
	if err := quick.MakeFIFO(directory, name, 0o600); err != nil {
		return fmt.Errorf("making the FIFO %s: %w", name, err)
	}
	if err := quick.Chown(directory, name, user.UID, user.GID); err != nil {
		return fmt.Errorf("changing the owner of the FIFO %s: %w", name, err)
	}
	return nil
}
