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
	// An output that gave less than this is left alone for a moment, so that
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

// output forwards one output of a program. It lives as long as anybody holds
// the other end, which may be longer than the program.
type output struct {
	file     *os.File
	raw      syscall.RawConn
	terminal bool

	mu   sync.Mutex
	over bool // the program has ended: what comes now is nobody's
	sink func(payload []byte)
}

func newOutput(file *os.File, terminal bool, sink func([]byte)) (*output, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &output{file: file, raw: raw, terminal: terminal, sink: sink}, nil
}

// pump runs until the last writer is gone or the file is closed. A terminal
// that nobody has open can be opened again as long as its program lives, and
// closing it would end the program.
func (o *output) pump() {
	defer o.file.Close()
	for {
		var n int
		var failed error
		err := o.raw.Read(func(fd uintptr) bool {
			n, failed = o.forward(int(fd), bufferSize)
			return n > 0 || failed != unix.EAGAIN
		})
		if err == nil && failed == unix.EIO && n == 0 && o.terminal && !o.isOver() {
			time.Sleep(unused)
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if n < burst || o.isOver() {
			time.Sleep(pause)
		}
	}
}

func (o *output) isOver() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// forward reads what is there, at the most so much, and passes it on. The sink
// may wait for credit, and with it whoever wants this output: that is the
// back-pressure.
func (o *output) forward(fd, most int) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.take(fd, most)
}

// take is forward with mu held. It says what stopped it, if anything did.
func (o *output) take(fd, most int) (n int, err error) {
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
	if n > 0 && !o.over {
		o.sink(buffer[:n])
	}
	return n, err
}

// drain forwards what is there at this moment, and no more: a child that keeps
// writing must not keep its parent from ending. Later output is thrown away.
func (o *output) drain() {
	_ = o.raw.Control(func(fd uintptr) {
		o.mu.Lock()
		defer o.mu.Unlock()
		left := atTheEnd
		if !o.terminal { // a terminal's buffers are not all counted
			left = quick.Pending(int(fd))
		}
		for left > 0 {
			n, err := o.take(int(fd), left)
			left -= n
			if err != nil || n == 0 {
				break
			}
		}
		o.over = true
	})
}
