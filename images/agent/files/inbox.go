package files

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"exec-sandbox/agent/channel"
)

var errCancelled = errors.New("cancelled")

// inbox holds what the host sends on one stream until it is read; the stream's
// credit limits how much.
type inbox struct {
	stream *channel.Stream

	mu      sync.Mutex
	arrived sync.Cond
	bytes   bytes.Buffer
	ended   bool
	gone    chan struct{} // closed when the host has left
	dead    bool
}

func newInbox(s *channel.Stream) *inbox {
	in := &inbox{stream: s, gone: make(chan struct{})}
	in.arrived.L = &in.mu
	return in
}

// Data is called by the connection.
func (in *inbox) Data(sub byte, payload []byte, last bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.bytes.Write(payload)
	in.ended = in.ended || last
	in.arrived.Signal()
}

// Note is called by the connection. No operation uses notes.
func (in *inbox) Note([]byte) {}

// Reset is called by the connection.
func (in *inbox) Reset() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.dead {
		in.dead = true
		close(in.gone)
	}
	in.arrived.Signal()
}

// Read waits for bytes and returns their credit.
func (in *inbox) Read(p []byte) (int, error) {
	in.mu.Lock()
	for in.bytes.Len() == 0 && !in.ended && !in.dead {
		in.arrived.Wait()
	}
	if in.dead {
		in.mu.Unlock()
		return 0, errCancelled
	}
	n, _ := in.bytes.Read(p)
	in.mu.Unlock()
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	in.stream.Grant(n)
	return n, nil
}

// outbox sends what is written, at the host's pace.
type outbox struct{ stream *channel.Stream }

// Write waits for credit.
func (out outbox) Write(p []byte) (int, error) {
	if !out.stream.Send(channel.File, p) {
		return 0, errCancelled
	}
	return len(p), nil
}
