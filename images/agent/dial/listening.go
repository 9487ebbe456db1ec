package dial

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"exec-sandbox/agent/channel"
)

const (
	// look is how often the table is looked at while somebody waits. It is the
	// kernel's, because a connection would be one that the server sees.
	look = 15 * time.Millisecond
	// maxTable bounds what is read of the table, whose length is up to user code.
	maxTable = 4 << 20
)

// waiter is who waits for a listener.
type waiter struct {
	stream   *channel.Stream
	port     int
	deadline time.Time
}

func (w *waiter) Data(byte, []byte, bool) {}
func (w *waiter) Note([]byte)             {}

// Reset leaves it to the next look to forget the waiter.
func (w *waiter) Reset() {}

// watch looks on behalf of all waiters, so that many cost hardly more than one.
type watch struct {
	wake chan struct{}

	mu      sync.Mutex
	waiters []*waiter
	looking bool
}

var listeners = &watch{wake: make(chan struct{}, 1)}

// add takes a waiter, whose stream ends when somebody listens at the port or
// the time is over, but not before one look.
func (l *watch) add(w *waiter) {
	l.mu.Lock()
	l.waiters = append(l.waiters, w)
	begin := !l.looking
	l.looking = true
	l.mu.Unlock()
	if begin {
		go l.run() // ends with the last waiter
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *watch) run() {
	for {
		l.mu.Lock()
		waiting := l.waiters
		l.waiters = nil
		if len(waiting) == 0 {
			l.looking = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		now := time.Now()
		open := listening()
		left := waiting[:0]
		for _, w := range waiting {
			switch {
			case w.stream.Dead():
			case open[w.port] || !now.Before(w.deadline):
				w.stream.End(map[string]bool{"listening": open[w.port]})
			default:
				left = append(left, w)
			}
		}
		l.mu.Lock()
		l.waiters = append(left, l.waiters...)
		l.mu.Unlock()
		if len(left) > 0 {
			select {
			case <-l.wake:
			case <-time.After(look):
			}
		}
	}
}

// listening says at which ports a connect over the loopback arrives.
func listening() map[int]bool {
	open := map[int]bool{}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(name)
		if err != nil {
			continue
		}
		table, err := io.ReadAll(io.LimitReader(file, maxTable))
		_ = file.Close()
		if err == nil {
			listens(table, open)
		}
	}
	return open
}

// reachable are the addresses, as the kernel prints them, at which a connect to
// 127.0.0.1 or ::1 arrives.
var reachable = map[string]bool{
	"00000000":                         true, // 0.0.0.0
	"0100007F":                         true, // 127.0.0.1
	"00000000000000000000000000000000": true, // ::
	"00000000000000000000000001000000": true, // ::1
	"0000000000000000FFFF000000000000": true, // ::ffff:0.0.0.0
	"0000000000000000FFFF00000100007F": true, // ::ffff:127.0.0.1
}

// listens adds the ports of which a table of /proc/net has a listener that can
// be reached over the loopback.
func listens(table []byte, open map[int]bool) {
	for _, line := range bytes.Split(table, []byte{'\n'}) {
		fields := bytes.Fields(line)
		if len(fields) < 4 || string(fields[3]) != "0A" {
			continue
		}
		at := bytes.IndexByte(fields[1], ':')
		if at < 0 || !reachable[string(fields[1][:at])] {
			continue
		}
		if number, err := strconv.ParseUint(string(fields[1][at+1:]), 16, 16); err == nil {
			open[int(number)] = true
		}
	}
}
