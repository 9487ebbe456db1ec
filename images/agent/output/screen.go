package output

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

const (
	// unused is how often a terminal that no process has open is read.
	unused = 20 * time.Millisecond
	// atTheEnd is how many bytes are read from a terminal, at most, after its
	// program's end.
	atTheEnd = 1 << 20
)

// Screen forwards the output of a terminal. It lives until the terminal is
// closed, which may be later than the program's end.
type Screen struct {
	file *os.File
	raw  syscall.RawConn

	mu   sync.Mutex
	over bool // the program has ended
	sink func(payload []byte)
}

// NewScreen takes over the agent's end of a terminal, which must be
// non-blocking.
func NewScreen(file *os.File, sink func([]byte)) (*Screen, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Screen{file: file, raw: raw, sink: sink}, nil
}

func (s *Screen) Start() { go s.pump() } // ends when the terminal is closed

func (s *Screen) Close() { _ = s.file.Close() }

// pump runs until the file is closed. A terminal that no process has open can
// be opened again while its program lives, and closing it would end the
// program.
func (s *Screen) pump() {
	defer s.file.Close()
	for {
		var n int
		var failed error
		err := s.raw.Read(func(fd uintptr) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			n, failed = s.take(int(fd), bufferSize)
			return n > 0 || failed != unix.EAGAIN
		})
		if err == nil && failed == unix.EIO && n == 0 && !s.isOver() {
			time.Sleep(unused)
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if n < burst {
			time.Sleep(pause)
		}
	}
}

func (s *Screen) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// take reads up to most bytes and forwards them; called with mu held. The sink
// may wait for credit, and then the terminal is not read: that is the
// back-pressure. It returns the error that stopped it, if any.
func (s *Screen) take(fd, most int) (n int, err error) {
	buffer := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buffer)
	if most > bufferSize {
		most = bufferSize
	}
	for n < most {
		var got int
		// A terminal gives little at a time.
		got, err = quick.Read(fd, buffer[n:most])
		if err != nil || got == 0 {
			break
		}
		n += got
	}
	if n > 0 {
		s.sink(buffer[:n])
	}
	return n, err
}

func (s *Screen) Drain(next func(payload []byte)) {
	_ = s.raw.Control(func(fd uintptr) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for left := atTheEnd; left > 0; {
			n, err := s.take(int(fd), left)
			left -= n
			if err != nil || n == 0 {
				break
			}
		}
		s.over, s.sink = true, next
	})
}
