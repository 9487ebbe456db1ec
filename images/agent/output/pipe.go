// Package output sends the host what programs write: during an execution as its
// output, afterwards as background output. What the host does not keep goes to
// a file in the guest.
package output

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

const (
	bufferSize = 64 << 10
	// After a read of less than this, an output is not read for a moment, so
	// that many small writes of a program become few frames. The first output
	// after a quiet moment, such as the echo of a key, is not delayed.
	burst = bufferSize / 4
	pause = 2 * time.Millisecond
	// After this many empty reads in a row the pump waits for the poller.
	patience = 5
)

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Output is what a program writes to: a Pipe or a Screen.
type Output interface {
	// Start forwards what comes from now on, in the background.
	Start()
	// Drain forwards what is there at this moment, and no more: a child that
	// keeps writing must not delay the end of its parent. Later output goes to
	// the next sink.
	Drain(next func(payload []byte))
	// Close is for an output that was never started.
	Close()
}

// Discard is the sink for what comes after a program's end; it slows the writer
// down.
func Discard([]byte) { time.Sleep(pause) }

// Pipe forwards one output. It lives as long as a process has the other end
// open, which may be longer than the execution or program whose output it is.
type Pipe struct {
	fd int

	mu      sync.Mutex
	gone    bool
	pumping bool
	waiting *os.File // a copy of fd for the poller, while the pump waits
	sink    func(payload []byte)
}

// OpenPipe opens the reading end; a writer can open the other from then on.
func OpenPipe(directory int, name string) (*Pipe, error) {
	fd, err := quick.Open(directory, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return NewPipe(fd, func([]byte) {}), nil
}

// NewPipe takes over the reading end of a pipe, which must be non-blocking.
func NewPipe(fd int, sink func(payload []byte)) *Pipe {
	quick.Widen(fd)
	return &Pipe{fd: fd, sink: sink}
}

// Start forwards from now on until the last writer is gone, which ends the
// goroutine. It must be called when there is a writer: before, reading would
// return the end of the file at once.
func (p *Pipe) Start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone && !p.pumping {
		p.pumping = true
		go p.pump()
	}
}

// Attend is Start for a pipe that may have no writer yet; it reports whether it
// has one.
func (p *Pipe) Attend() bool {
	p.mu.Lock()
	if !p.gone && !p.pumping && quick.Pending(p.fd) == 0 {
		if n, err := p.forward(bufferSize); n == 0 && err == nil {
			p.mu.Unlock()
			return false
		}
	}
	p.mu.Unlock()
	p.Start()
	return true
}

// Follow is Start for what comes after an execution, when there is mostly no
// writer left.
func (p *Pipe) Follow() {
	p.mu.Lock()
	over := !p.gone && !p.pumping && quick.HungUp(p.fd)
	for over {
		if n, err := p.forward(bufferSize); err != nil || n == 0 {
			break
		}
	}
	p.mu.Unlock()
	if over {
		p.Close()
	} else {
		p.Start()
	}
}

// pump reads at intervals while there is output. The poller would wake the
// agent for every line that a program writes, which under emulation costs more
// than the program's own work; it is used only when the pipe is quiet.
func (p *Pipe) pump() {
	defer p.Close()
	for quiet := 0; ; {
		n, err := p.look()
		switch {
		case err == unix.EAGAIN && quiet == patience:
			if !p.wait() {
				return
			}
			quiet = 0
			continue
		case err == unix.EAGAIN:
			quiet++
		case n <= 0:
			return
		default:
			quiet = 0
			if n >= burst {
				continue
			}
		}
		time.Sleep(pause)
	}
}

func (p *Pipe) look() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return 0, nil
	}
	return p.forward(bufferSize)
}

// wait returns when there is something to read or no writer left, or
// false when the pipe was closed.
func (p *Pipe) wait() bool {
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return false
	}
	// Closing a copy removes it from the poller and leaves the pipe open.
	fd, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		p.mu.Unlock()
		time.Sleep(100 * time.Millisecond) // out of descriptors: read at intervals
		return true
	}
	file := os.NewFile(uintptr(fd), "output")
	p.waiting = file
	p.mu.Unlock()

	if raw, err := file.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool {
			return quick.Pending(int(fd)) > 0 || quick.HungUp(int(fd))
		})
	}
	p.mu.Lock()
	p.waiting = nil
	gone := p.gone
	p.mu.Unlock()
	_ = file.Close()
	return !gone
}

// forward reads once and passes it on; called with mu held. The sink may wait
// for credit, and then the pipe is not read: that is the back-pressure.
func (p *Pipe) forward(most int) (int, error) {
	buffer := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buffer)
	if most > bufferSize {
		most = bufferSize
	}
	n, err := quick.Read(p.fd, buffer[:most])
	if n > 0 {
		p.sink(buffer[:n])
	}
	return n, err
}

// Drain forwards what is in the pipe at this moment, and no more: a child that
// keeps writing must not delay the end of an execution. What comes later goes
// to the next sink.
func (p *Pipe) Drain(next func(payload []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	for left := quick.Pending(p.fd); left > 0; {
		n, err := p.forward(left)
		if err != nil || n <= 0 {
			break
		}
		left -= n
	}
	p.sink = next
}

// Empty reports whether the pipe has no bytes and is not being pumped.
func (p *Pipe) Empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && !p.pumping && quick.Pending(p.fd) == 0
}

// HungUp reports whether there is no writer left.
func (p *Pipe) HungUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && quick.HungUp(p.fd)
}

// Close ends the pipe and with it the pump.
func (p *Pipe) Close() {
	p.mu.Lock()
	gone, waiting := p.gone, p.waiting
	p.gone = true
	p.mu.Unlock()
	if gone {
		return
	}
	if waiting != nil {
		_ = waiting.Close()
	}
	quick.Close(p.fd) // everything else checks gone first
}
