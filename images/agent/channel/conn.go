package channel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrLost is returned by a port's Read, once, when its host has gone.
var ErrLost = errors.New("no host is connected")

const (
	// maxStreams is how many streams a host may have open at one time.
	maxStreams = 1024
	// crowd is how many bytes may wait for the port before senders of DATA must
	// wait. Control frames are small and are always accepted.
	crowd = 2 * MaxPayload
	// maxCredit keeps the sum of a host's grants far from any overflow.
	maxCredit = 1 << 40
)

// Handler is what the connection serves. Its methods run on the reading
// goroutine and must not block.
type Handler interface {
	// Hello applies a host's greeting; its answer is the acknowledgement.
	// An error means that the greeting itself was malformed.
	Hello(payload []byte) (acknowledgement any, err error)
	// Open takes a stream that the host opened. An error means that the
	// payload is not JSON.
	Open(s *Stream, payload []byte) error
}

// Conn is the agent's end of the channel, across all epochs.
type Conn struct {
	port    io.ReadWriteCloser
	handler Handler
	log     func(string)

	mu        sync.Mutex
	streams   map[uint32]*Stream
	lastHost  uint32 // the highest id that the host has opened
	lastGuest uint32
	number    uint64 // of the epoch, for what outlives one
	greeted   bool
	closed    bool
	out       []byte    // frames that wait for the port
	filled    sync.Cond // out is not empty
	room      sync.Cond // out is not crowded any more
}

// New returns a connection that does nothing until Serve.
func New(port io.ReadWriteCloser, handler Handler, log func(string)) *Conn {
	c := &Conn{port: port, handler: handler, log: log, streams: map[uint32]*Stream{}}
	c.filled.L = &c.mu
	c.room.L = &c.mu
	return c
}

// Announce sends the greeting of a guest that has just booted.
func (c *Conn) Announce(hello any) error {
	payload, err := encode(hello)
	if err != nil {
		return fmt.Errorf("announcing: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendPreamble(c.out, Epoch{})
	c.put(0, Hello, 0, payload)
	return nil
}

// Epoch numbers the current epoch; it is zero before the first greeting.
func (c *Conn) Epoch() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.number
}

// Open starts a stream from the guest's side, or returns nil when no host has
// greeted us.
func (c *Conn) Open(request any, r Receiver) *Stream {
	payload, err := json.Marshal(request)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.greeted {
		return nil
	}
	c.lastGuest += 2
	s := c.stream(c.lastGuest)
	s.receiver = r
	c.put(s.id, Open, 0, payload)
	return s
}

// Serve reads until the port is closed or fails. It owns the writing goroutine
// and ends it.
func (c *Conn) Serve() error {
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write()
	}()
	err := c.read()
	c.drop()
	c.mu.Lock()
	c.closed = true
	c.filled.Broadcast()
	c.mu.Unlock()
	_ = c.port.Close()
	<-written
	return err
}

func (c *Conn) read() error {
	decoder := NewDecoder(c.port)
	for {
		frame, epoch, err := decoder.Next()
		if err == nil {
			if frame == nil {
				c.begin(epoch)
			} else {
				err = c.dispatch(frame)
			}
		}
		if err == nil {
			continue
		}
		var bad *ProtocolError
		switch {
		case errors.As(err, &bad):
			c.log(err.Error())
			c.drop()
			decoder.Hunt()
		case errors.Is(err, ErrLost):
			// The old host's executions end when the next host greets.
			decoder.Lost()
		default:
			return fmt.Errorf("reading the channel: %w", err)
		}
	}
}

// begin starts a new epoch.
func (c *Conn) begin(epoch Epoch) {
	c.drop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendPreamble(c.out[:0], epoch)
	c.number++
}

// drop ends the epoch and all its streams.
func (c *Conn) drop() {
	c.mu.Lock()
	c.greeted = false
	c.out = c.out[:0]
	c.lastHost, c.lastGuest = 0, 0
	var orphans []Receiver
	for _, s := range c.streams {
		s.die()
		if s.receiver != nil {
			orphans = append(orphans, s.receiver)
		}
	}
	c.mu.Unlock()
	for _, r := range orphans {
		if s, ok := r.(Survivor); !ok || !s.Survives() {
			r.Reset()
		}
	}
}

func (c *Conn) dispatch(f *Frame) error {
	if !c.greeted { // only this goroutine changes it
		return c.greet(f)
	}
	if f.Stream == 0 {
		if f.Kind != Ping || len(f.Payload) != 8 {
			return broken("kind %d on stream 0", f.Kind)
		}
		c.mu.Lock()
		c.put(0, Pong, 0, f.Payload)
		c.mu.Unlock()
		return nil
	}
	switch f.Kind {
	case Open:
		return c.accept(f)
	case Note, End, Reset:
		if !json.Valid(f.Payload) {
			return broken("kind %d is not JSON", f.Kind)
		}
	case Data, Credit:
	default:
		return broken("kind %d on stream %d", f.Kind, f.Stream)
	}
	s, err := c.find(f.Stream)
	if s == nil {
		return err
	}
	return s.deliver(f)
}

func (c *Conn) greet(f *Frame) error {
	if f.Stream != 0 || f.Kind != Hello {
		return broken("kind %d before HELLO", f.Kind)
	}
	answer, err := c.handler.Hello(f.Payload)
	if err != nil {
		return broken("HELLO: %v", err)
	}
	payload, err := encode(answer)
	if err != nil {
		return broken("HELLO: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(0, Hello, 0, payload)
	c.greeted = true
	return nil
}

func (c *Conn) accept(f *Frame) error {
	if f.Stream%2 == 0 || f.Stream <= c.lastHost {
		return broken("OPEN of stream %d after %d", f.Stream, c.lastHost)
	}
	c.mu.Lock()
	c.lastHost = f.Stream
	s := c.stream(f.Stream)
	full := len(c.streams) > maxStreams
	c.mu.Unlock()
	if full {
		s.Reset("failed", "too many streams are open")
		return nil
	}
	if err := c.handler.Open(s, f.Payload); err != nil {
		return broken("OPEN: %v", err)
	}
	return nil
}

// stream is called with mu held.
func (c *Conn) stream(id uint32) *Stream {
	s := &Stream{conn: c, id: id, outgoing: InitialCredit, incoming: InitialCredit}
	s.credited.L = &c.mu
	c.streams[id] = s
	return s
}

// find returns the stream of an id, nil for one that is already dead, and an
// error for one that was never opened.
func (c *Conn) find(id uint32) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.lastHost
	if id%2 == 0 {
		last = c.lastGuest
	}
	if id > last {
		return nil, broken("stream %d was never opened", id)
	}
	return c.streams[id], nil
}

func (s *Stream) deliver(f *Frame) error {
	switch f.Kind {
	case Data:
		s.conn.mu.Lock()
		s.incoming -= int64(len(f.Payload))
		over := s.incoming < 0
		s.conn.mu.Unlock()
		if over {
			return broken("stream %d exceeds its credit", s.id)
		}
		if s.receiver != nil {
			s.receiver.Data(f.Flags&subMask, f.Payload, f.Flags&Last != 0)
		}
	case Credit:
		if len(f.Payload) != 4 {
			return broken("CREDIT of %d bytes", len(f.Payload))
		}
		s.conn.mu.Lock()
		s.outgoing += int64(binary.LittleEndian.Uint32(f.Payload))
		over := s.outgoing > maxCredit
		s.credited.Broadcast()
		s.conn.mu.Unlock()
		if over {
			return broken("stream %d gets too much credit", s.id)
		}
	case Note:
		if s.receiver != nil {
			s.receiver.Note(f.Payload)
		}
	default: // END and RESET: both mean that the host is done with the stream
		s.conn.mu.Lock()
		s.die()
		s.conn.mu.Unlock()
		if s.receiver != nil {
			s.receiver.Reset()
		}
	}
	return nil
}

// put queues a frame for the port; called with mu held. The writing goroutine
// runs when the caller parks, so that frames made together leave together:
// every write to the port costs an exit from the virtual machine.
func (c *Conn) put(stream uint32, kind Kind, flags byte, payload []byte) {
	c.out = appendFrame(c.out, stream, kind, flags, payload)
	c.filled.Signal()
}

func (c *Conn) crowded() bool { return len(c.out) > crowd }

func (c *Conn) write() {
	var sending []byte
	for {
		c.mu.Lock()
		for len(c.out) == 0 && !c.closed {
			c.filled.Wait()
		}
		if c.closed {
			c.mu.Unlock()
			return
		}
		sending, c.out = c.out, sending[:0]
		c.room.Broadcast()
		c.mu.Unlock()
		if _, err := c.port.Write(sending); err != nil {
			// Reading fails as well and ends the connection; until then the
			// writes are lost.
			c.log("writing the channel: " + err.Error())
			sending = nil
		}
	}
}
