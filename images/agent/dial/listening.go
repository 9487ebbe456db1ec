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
	// look is how often the kernel's table is read while a request waits.
	// Connecting instead would be visible to the server.
	look = 15 * time.Millisecond
	// maxTable is how much of the table is read: user code decides how long it
	// is.
	maxTable = 4 << 20
)

// waiter is a request that waits for a listener.
type waiter struct {
	stream   *channel.Stream
	port     int
	deadline time.Time
}

func (w *waiter) Data(byte, []byte, bool) {}
func (w *waiter) Note([]byte)             {}

// Reset does nothing: the next look drops the waiter.
func (w *waiter) Reset() {}

// watch looks for all waiters at once, so that many cost hardly more than one.
type watch struct {
	wake chan struct{}

	mu      sync.Mutex
	waiters []*waiter
	looking bool
}

var listeners = &watch{wake: make(chan struct{}, 1)}

// add adds a waiter. Its stream ends when something listens at the port or the
// time is over, but not before one look.
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

// listening returns the ports at which a connect over the loopback arrives.
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

// listens adds the ports with a listener in a table of /proc/net that can be
// reached over the loopback.
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
