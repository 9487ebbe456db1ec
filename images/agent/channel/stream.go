package channel

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"sync"
)

// Receiver gets what the host sends on one stream. It is called on the
// connection's reading goroutine and must not block; payloads are valid only
// during the call.
type Receiver interface {
	// Data delivers bytes of a sub-channel. Once they are consumed,
	// Stream.Grant returns their credit.
	Data(sub byte, payload []byte, last bool)
	// Note delivers a typed event, which is valid JSON.
	Note(payload []byte)
	// Reset tells it that the stream is dead: cancelled, or its epoch is over.
	Reset()
}

// Survivor is a Receiver that may continue when the epoch of its stream ends
// without a cancel: the machine has been copied, and this is the copy.
type Survivor interface {
	Receiver
	// Survives reports whether it continues; then Reset is not called.
	Survives() bool
}

// Stream is one request and its answer. After End, Reset or the host's reset it
// is dead: everything sent on it is dropped silently.
type Stream struct {
	conn     *Conn
	id       uint32
	receiver Receiver

	// All below is guarded by conn.mu.
	dead     bool
	outgoing int64 // bytes that the host still allows
	incoming int64 // bytes that we still allow
	consumed int64 // consumed, not granted back yet
	credited sync.Cond
}

// ID is the stream's number on the wire.
func (s *Stream) ID() uint32 { return s.id }

// Receive sets the receiver. It must be called before Handler.Open returns.
func (s *Stream) Receive(r Receiver) { s.receiver = r }

// Send sends bytes on a sub-channel, waiting for credit as often as needed. It
// reports false when the stream died before all was sent.
func (s *Stream) Send(sub byte, payload []byte) bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	for len(payload) > 0 {
		for !s.dead && (s.outgoing == 0 || s.conn.crowded()) {
			if s.outgoing == 0 {
				s.credited.Wait()
			} else {
				s.conn.room.Wait()
			}
		}
		if s.dead {
			return false
		}
		payload = payload[s.sendSome(sub, payload):]
	}
	return true
}

// TrySend sends as much as credit allows now and returns how much that was.
func (s *Stream) TrySend(sub byte, payload []byte) int {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	sent := 0
	for sent < len(payload) && !s.dead && s.outgoing > 0 && !s.conn.crowded() {
		sent += s.sendSome(sub, payload[sent:])
	}
	return sent
}

func (s *Stream) sendSome(sub byte, payload []byte) int {
	n := len(payload)
	if n > MaxPayload {
		n = MaxPayload
	}
	if int64(n) > s.outgoing {
		n = int(s.outgoing)
	}
	s.outgoing -= int64(n)
	s.conn.put(s.id, Data, sub, payload[:n])
	return n
}

// Finish ends a sub-channel.
func (s *Stream) Finish(sub byte) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if !s.dead {
		s.conn.put(s.id, Data, sub|Last, nil)
	}
}

// Note sends a typed event.
func (s *Stream) Note(event any) { s.control(Note, event, false) }

// End ends the stream in order with its result.
func (s *Stream) End(result any) { s.control(End, result, true) }

// Reset ends the stream abnormally. The codes are part of the contract.
func (s *Stream) Reset(code, message string) {
	s.control(Reset, struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, message}, true)
}

// Invalid answers a request that cannot be read, or asks for what cannot be
// done. It returns the error of a payload that is not even JSON, which is the
// connection's: see Handler.Open.
func (s *Stream) Invalid(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return err
	}
	s.Reset("invalid", err.Error())
	return nil
}

func (s *Stream) control(kind Kind, value any, final bool) {
	payload, err := encode(value)
	if err == nil && len(payload) > MaxPayload {
		err = broken("%d bytes of JSON", len(payload))
	}
	if err != nil {
		// Only our own values are marshalled, so this is a bug in the agent.
		kind, final = Reset, true
		payload = []byte(`{"code":"failed","message":"the agent's answer does not fit a frame"}`)
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.dead {
		return
	}
	s.conn.put(s.id, kind, 0, payload)
	if final {
		s.die()
	}
}

// Appender is a value that appends its own JSON.
type Appender interface{ AppendJSON(out []byte) []byte }

// Raw is JSON.
type Raw string

// AppendJSON writes it.
func (r Raw) AppendJSON(out []byte) []byte { return append(out, r...) }

// encode leaves <, > and & as they are: escaping them would triple what users
// print, and an answer could outgrow its frame.
func encode(value any) ([]byte, error) {
	if own, ok := value.(Appender); ok {
		return own.AppendJSON(nil), nil
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// Grant gives consumed bytes back as credit, gathered so that short inputs
// cost no frame at all.
func (s *Stream) Grant(n int) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.consumed += int64(n)
	if s.dead || s.consumed < InitialCredit/2 {
		return
	}
	var payload [4]byte
	binary.LittleEndian.PutUint32(payload[:], uint32(s.consumed))
	s.incoming += s.consumed
	s.consumed = 0
	s.conn.put(s.id, Credit, 0, payload[:])
}

// Dead reports whether the stream is over.
func (s *Stream) Dead() bool {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.dead
}

// die is called with conn.mu held.
func (s *Stream) die() {
	s.dead = true
	delete(s.conn.streams, s.id)
	s.credited.Broadcast()
	s.conn.room.Broadcast()
}

// Room is how many bytes TrySend would take right now.
func (s *Stream) Room() int64 {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.dead || s.conn.crowded() {
		return 0
	}
	return s.outgoing
}
