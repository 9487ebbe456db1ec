package interpreter

import (
	"bytes"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

const (
	maxLine  = 4096
	maxLines = 256
)

// lines are what an interpreter writes to its FIFO. User code can write there
// as well, so lines that are too long or too many are dropped, and a flood is
// slowed down.
type lines struct {
	file *os.File
	raw  syscall.RawConn
	fd   int
	poke func()

	mu      sync.Mutex
	gone    bool
	buffer  [maxLine]byte // a field, because clearing a new one costs more than reading
	partial []byte
	heard   []string
}

func openLines(path string, poke func()) (*lines, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &lines{file: file, raw: raw, fd: fd, poke: poke}, nil
}

// listen runs until close.
func (l *lines) listen() {
	for {
		flooded := false
		err := l.raw.Read(func(uintptr) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			if !l.gone && !l.read() {
				return false
			}
			flooded = len(l.heard) >= maxLines
			return true
		})
		if err != nil {
			return
		}
		l.poke()
		if flooded {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// take returns the lines so far, including what listen has not read.
func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone && len(l.heard) == 0 {
		l.read()
	}
	heard := l.heard
	l.heard = nil
	return heard
}

// read reads once; called with mu held. It reports whether there was anything.
func (l *lines) read() bool {
	n, err := quick.Read(l.fd, l.buffer[:])
	if err != nil || n <= 0 {
		return false
	}
	text := append(l.partial, l.buffer[:n]...)
	for {
		at := bytes.IndexByte(text, '\n')
		if at < 0 {
			break
		}
		if at < maxLine && len(l.heard) < maxLines {
			l.heard = append(l.heard, string(text[:at]))
		}
		text = text[at+1:]
	}
	if len(text) > maxLine {
		text = nil
	}
	l.partial = append([]byte(nil), text...)
	return true
}

func (l *lines) close() {
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	_ = l.file.Close()
}
