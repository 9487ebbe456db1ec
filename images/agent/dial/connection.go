// Package dial connects the host to servers inside the guest, and reports when
// one listens.
package dial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"exec-sandbox/agent/channel"
)

const (
	// connecting limits a connect: a server whose queue is full does not
	// answer.
	connecting = 10 * time.Second
	bufferSize = 64 << 10
)

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Serves reports whether a method belongs to this package.
func Serves(method string) bool { return method == "dial" || method == "listening" }

// Request is OPEN's payload of the methods dial and listening.
type Request struct {
	Method    string `json:"method"`
	Port      int    `json:"port"`
	TimeoutMs int64  `json:"timeoutMs"`
}

// Decode reads a request and checks it.
func Decode(payload []byte) (*Request, error) {
	r := &Request{}
	if err := json.Unmarshal(payload, r); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	if r.Port < 1 || r.Port > 65535 {
		return nil, fmt.Errorf("there is no port %d", r.Port)
	}
	if r.TimeoutMs < 0 {
		return nil, fmt.Errorf("the time is negative")
	}
	return r, nil
}

// Open serves a request of the host.
func Open(stream *channel.Stream, payload []byte) error {
	r, err := Decode(payload)
	if err != nil {
		return stream.Invalid(err)
	}
	if r.Method == "listening" {
		w := &waiter{stream, r.Port, time.Now().Add(time.Duration(r.TimeoutMs) * time.Millisecond)}
		stream.Receive(w)
		listeners.add(w)
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &connection{stream: stream, cancel: cancel, wake: make(chan struct{}, 1)}
	stream.Receive(c)
	go c.run(ctx, r.Port) // ends with the connection
	return nil
}

// connection carries bytes between one stream and one server. What waits for
// the server is bounded by the stream's credit.
type connection struct {
	stream *channel.Stream
	cancel context.CancelFunc
	wake   chan struct{}

	mu      sync.Mutex
	conn    *net.TCPConn
	waiting [][]byte
	ended   bool // the host sends no more
	over    bool // the stream or the connection is dead
}

// Data takes what goes to the server.
func (c *connection) Data(sub byte, payload []byte, last bool) {
	if sub != channel.Stdin {
		return
	}
	c.mu.Lock()
	if !c.over && !c.ended && len(payload) > 0 {
		c.waiting = append(c.waiting, append([]byte(nil), payload...))
	}
	c.ended = c.ended || last
	c.mu.Unlock()
	c.poke()
}

// Note does nothing: the host sends no events.
func (c *connection) Note([]byte) {}

// Reset aborts the connection, so that the server sees that it did not end in
// order.
func (c *connection) Reset() {
	c.cancel()
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		_ = conn.SetLinger(0)
	}
	c.stop()
}

// stop ends both directions. It may run more than once.
func (c *connection) stop() {
	c.mu.Lock()
	c.over, c.waiting = true, nil
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	c.poke()
}

func (c *connection) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *connection) run(ctx context.Context, port int) {
	defer c.cancel()
	conn, err := connect(ctx, port)
	if err != nil {
		c.stop()
		c.stream.Reset(codeOf(err), fmt.Sprintf("connecting to port %d: %v", port, err))
		return
	}
	c.mu.Lock()
	c.conn = conn
	over := c.over
	c.mu.Unlock()
	defer c.stop()
	if over {
		return
	}
	c.stream.Note(map[string]string{"event": "connected"})
	written := make(chan struct{})
	go func() { // ends when the host has no more, or by stop
		defer close(written)
		c.write(conn)
	}()
	if err := c.read(conn); err != nil {
		_ = conn.SetLinger(0)
		c.stream.Reset(codeOf(err), fmt.Sprintf("the connection to port %d broke: %v", port, err))
		return
	}
	<-written
	c.stream.End(struct{}{})
}

// connect tries the loopback's IPv6 address when nothing listens at the IPv4
// one.
func connect(ctx context.Context, port int) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: connecting}
	var first error
	for _, address := range []string{"127.0.0.1", "::1"} {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	return nil, first
}

// codeOf returns the code of an error for the host; the codes are part of the
// protocol.
func codeOf(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return "timeout"
	}
	return "failed"
}

// read sends the host what the server writes, until its end. Sending waits for
// credit, and so slows the server down.
func (c *connection) read(conn *net.TCPConn) error {
	buffer := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buffer)
	for {
		n, err := conn.Read(buffer[:])
		if n > 0 && !c.stream.Send(channel.Stdout, buffer[:n]) {
			return errors.New("the host has left")
		}
		if errors.Is(err, io.EOF) {
			c.stream.Finish(channel.Stdout)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// write sends the server what the host writes, until its end. A server that
// reads no more may still write: then what the host sends is dropped, and the
// connection ends when the server's output does.
func (c *connection) write(conn *net.TCPConn) {
	for {
		c.mu.Lock()
		pieces, ended, over := c.waiting, c.ended, c.over
		c.waiting = nil
		c.mu.Unlock()
		if over {
			return
		}
		for _, piece := range pieces {
			if _, err := conn.Write(piece); err != nil {
				c.mu.Lock()
				c.ended, c.waiting = true, nil
				c.mu.Unlock()
				return
			}
			c.stream.Grant(len(piece))
		}
		if len(pieces) > 0 {
			continue
		}
		if ended {
			_ = conn.CloseWrite()
			return
		}
		<-c.wake
	}
}
