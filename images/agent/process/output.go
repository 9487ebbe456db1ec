package process

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

const (
	bufferSize = 64 << 10
	// A terminal that gave less than this is left alone for a moment, so that
	// many small writes of a program become few frames. What follows a quiet
	// moment, such as the echo of a key, is not held back.
	burst = bufferSize / 4
	pause = 2 * time.Millisecond
	// unused is how often a terminal that nobody has open is looked at.
	unused = 20 * time.Millisecond
	// atTheEnd bounds what is taken from a terminal after its program's end.
	atTheEnd = 1 << 20
)

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// output is what a program writes to: a run.Pipe, or a screen.
type output interface {
	// Start forwards what comes from now on; it does not wait for any.
	Start()
	// Drain forwards what is there at this moment, and no more: a child that
	// keeps writing must not keep its parent from ending. Later output goes to
	// another sink.
	Drain(next func(payload []byte))
	// Close is for one that was never started.
	Close()
}

// nobody takes what comes after a program's end, without haste.
func nobody([]byte) { time.Sleep(pause) }

// screen forwards the output of a terminal. It lives until the terminal is
// closed, which may be later than the program's end.
type screen struct {
	file *os.File
	raw  syscall.RawConn

	mu   sync.Mutex
	over bool // the program has ended: what comes now is nobody's
	sink func(payload []byte)
}

func newScreen(file *os.File, sink func([]byte)) (*screen, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &screen{file: file, raw: raw, sink: sink}, nil
}

func (s *screen) Start() { go s.pump() } // ends when the terminal is closed

func (s *screen) Close() { _ = s.file.Close() }

// pump runs until the file is closed. A terminal that nobody has open can be
// opened again as long as its program lives, and closing it would end the
// program.
func (s *screen) pump() {
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

func (s *screen) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// take reads what is there, at the most so much, and passes it on; called with
// mu held. The sink may wait for credit, and with it whoever wants this output:
// that is the back-pressure. It says what stopped it, if anything did.
func (s *screen) take(fd, most int) (n int, err error) {
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

func (s *screen) Drain(next func(payload []byte)) {
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
