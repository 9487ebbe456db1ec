package egress

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"exec-sandbox/agent/channel"
)

// flow is one connection of the guest and its stream to the host.
type flow struct {
	gateway *Gateway
	key     key
	stream  *channel.Stream

	// Guarded by the gateway's mu.
	first    []byte // the packet that is held back
	port     uint16 // of the guest's side towards our listener; 0 until granted
	joined   bool
	over     bool
	ended    time.Time
	patience *time.Timer

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte // from the host, not written yet
	spare   []byte
	telling bool // a refusal is being recorded; until then the stream's end waits
	held    bool // the stream has ended meanwhile
	last    bool // the host sends no more
	sent    bool // the program sends no more
	dead    bool // the host has ended the stream
	conn    *net.TCPConn
}

func newFlow(g *Gateway, k key, first []byte) *flow {
	f := &flow{gateway: g, key: k, first: first}
	f.changed.L = &f.mu
	return f
}

// Data keeps what the host sends; credit limits how much that is.
func (f *flow) Data(_ byte, payload []byte, last bool) {
	f.mu.Lock()
	f.waiting = append(f.waiting, payload...)
	f.last = f.last || last
	f.changed.Signal()
	f.mu.Unlock()
}

// reply is the host's note on a connection that was asked for.
type reply struct {
	Event string `json:"event"`
	Errno string `json:"errno"`
}

// Note is the host's answer.
func (f *flow) Note(payload []byte) {
	var note reply
	_ = json.Unmarshal(payload, &note)
	switch note.Event {
	case "connected":
		f.gateway.grant(f)
	case "refused":
		f.mu.Lock()
		f.telling = true
		f.mu.Unlock()
		go f.refused(note.Errno) // ends soon
	}
}

// refused answers the program, after recording which program it is.
func (f *flow) refused(errno string) {
	f.gateway.record(f.key)
	f.gateway.refuse(f, errno)
	f.mu.Lock()
	f.telling = false
	held := f.held
	f.mu.Unlock()
	if held {
		f.Reset()
	}
}

// Reset is the end of the stream, in order or not.
func (f *flow) Reset() {
	f.mu.Lock()
	f.held = f.telling
	held := f.held
	f.mu.Unlock()
	if held {
		return
	}
	f.gateway.refuse(f, "ECONNREFUSED") // unless it was answered already
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
	f.changed.Signal()
	if f.conn != nil && !(f.last && f.sent) {
		f.cutOff()
	}
}

// abort ends a flow that the program has aborted.
func (f *flow) abort() {
	f.stream.Reset("closed", "the program aborted the connection")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
	f.changed.Signal()
	if f.conn != nil {
		f.cutOff()
	}
}

// cutOff shows the program that its connection did not end in order. Called
// with mu held.
func (f *flow) cutOff() {
	_ = f.conn.SetLinger(0)
	_ = f.conn.Close()
}

// run carries bytes both ways until both have ended, or one was cut off.
func (f *flow) run(conn *net.TCPConn) {
	defer func() {
		f.gateway.mu.Lock()
		f.gateway.finish(f)
		f.gateway.mu.Unlock()
	}()
	f.mu.Lock()
	f.conn = conn
	if f.dead {
		f.cutOff()
	}
	f.mu.Unlock()
	sent := make(chan bool, 1)
	go func() { sent <- f.up(conn) }() // ends when the connection is closed
	received := f.down(conn)
	if !received {
		f.mu.Lock()
		f.cutOff()
		f.mu.Unlock()
	}
	done := <-sent
	_ = conn.Close()
	if received && done {
		f.stream.End(struct{}{})
	} else {
		f.stream.Reset("closed", "the connection was cut off")
	}
}

// up sends what the program writes; true when it has ended its side.
func (f *flow) up(conn *net.TCPConn) bool {
	buffer := make([]byte, 32*1024)
	for {
		n, err := conn.Read(buffer)
		if n > 0 && !f.stream.Send(channel.Stdin, buffer[:n]) {
			return false
		}
		if errors.Is(err, io.EOF) {
			f.mu.Lock()
			f.sent = true
			f.mu.Unlock()
			f.stream.Finish(channel.Stdin)
			return true
		}
		if err != nil {
			f.mu.Lock()
			f.dead = true
			f.changed.Signal()
			f.mu.Unlock()
			return false
		}
	}
}

// down writes what the host sends; true when the host has ended its side.
func (f *flow) down(conn *net.TCPConn) bool {
	for {
		f.mu.Lock()
		for len(f.waiting) == 0 && !f.last && !f.dead {
			f.changed.Wait()
		}
		writing := f.waiting
		f.waiting = f.spare[:0]
		last, dead := f.last, f.dead
		f.mu.Unlock()
		if len(writing) > 0 {
			if _, err := conn.Write(writing); err != nil {
				return false
			}
			f.stream.Grant(len(writing))
			f.spare = writing[:0]
			continue
		}
		if last {
			return conn.CloseWrite() == nil
		}
		if dead {
			return false
		}
	}
}
