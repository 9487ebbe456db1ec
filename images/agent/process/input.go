package process

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

// input writes what the host sends to a program's stdin, as fast as the program
// reads. The stream's credit limits how much waits.
type input struct {
	grant func(int)
	wake  chan struct{}

	mu      sync.Mutex
	waiting [][]byte
	ended   bool // the host sends no more
	stopped bool
}

func newInput(grant func(int)) *input {
	return &input{grant: grant, wake: make(chan struct{}, 1)}
}

func (i *input) poke() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// push adds the next bytes; it never waits.
func (i *input) push(payload []byte, last bool) {
	i.mu.Lock()
	if !i.ended && !i.stopped && len(payload) > 0 {
		i.waiting = append(i.waiting, append([]byte(nil), payload...))
	}
	i.ended = i.ended || last
	i.mu.Unlock()
	i.poke()
}

// next is nil when the input is over.
func (i *input) next() []byte {
	for {
		i.mu.Lock()
		switch {
		case i.stopped:
			i.mu.Unlock()
			return nil
		case len(i.waiting) > 0:
			piece := i.waiting[0]
			i.waiting = i.waiting[1:]
			i.mu.Unlock()
			return piece
		case i.ended:
			i.mu.Unlock()
			return nil
		}
		i.mu.Unlock()
		<-i.wake
	}
}

func (i *input) isStopped() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.stopped
}

// stop ends write, because the program is gone.
func (i *input) stop() {
	i.mu.Lock()
	i.stopped, i.waiting = true, nil
	i.mu.Unlock()
	i.poke()
}

// write runs until the input is over or stopped. When the program reads no
// more, the rest of the input is dropped.
func (i *input) write(file *os.File, terminal bool) {
	var last byte = '\n'
	broken := false
	for piece := i.next(); piece != nil; piece = i.next() {
		last = piece[len(piece)-1]
		if !broken {
			broken = i.put(file, piece) != nil
		}
		i.grant(len(piece))
	}
	if !terminal {
		_ = file.Close()
		return
	}
	if broken || i.isStopped() {
		return
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	var keys []byte
	_ = raw.Control(func(fd uintptr) { keys = endOfFile(int(fd), last) })
	_ = i.put(file, keys)
}

// put writes all of it.
func (i *input) put(file *os.File, piece []byte) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	for len(piece) > 0 {
		var n int
		var failed error
		// The deadline makes it notice that the input was stopped, and that a
		// terminal has room, which its line discipline does not always report.
		if err := file.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		err := raw.Write(func(fd uintptr) bool {
			n, failed = quick.Write(int(fd), piece)
			return failed != unix.EAGAIN
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if i.isStopped() {
				return err
			}
		case err != nil:
			return err
		case failed != nil:
			return failed
		}
		piece = piece[n:]
	}
	return nil
}
