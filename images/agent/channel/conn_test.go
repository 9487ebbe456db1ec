package channel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"testing"
	"time"
)

// echo is a handler that does on each stream what its request says.
type echo struct{ streams chan *Stream }

func (e *echo) Hello(payload []byte) (any, error) {
	var hello struct{ Name string }
	if err := json.Unmarshal(payload, &hello); err != nil {
		return nil, err
	}
	return map[string]string{"welcome": hello.Name}, nil
}

func (e *echo) Open(s *Stream, payload []byte) error {
	if !json.Valid(payload) {
		return errors.New("not JSON")
	}
	keep := string(payload) == `{"keep":true}`
	s.Receive(&receiver{stream: s, keep: keep, reset: make(chan struct{})})
	e.streams <- s
	return nil
}

// receiver sends back what it gets and grants it, or keeps it.
type receiver struct {
	stream *Stream
	keep   bool
	reset  chan struct{}
}

func (r *receiver) Data(sub byte, payload []byte, last bool) {
	if r.keep {
		return
	}
	r.stream.TrySend(sub, payload)
	r.stream.Grant(len(payload))
	if last {
		r.stream.End(map[string]int{"exitCode": 0})
	}
}
func (r *receiver) Note([]byte) {}
func (r *receiver) Reset()      { close(r.reset) }

// host is the other end, for tests.
type host struct {
	t       *testing.T
	pipe    net.Conn
	decoder *Decoder
	streams chan *Stream
	errors  chan string
}

func connect(t *testing.T) *host {
	ours, theirs := net.Pipe()
	streams, errors := make(chan *Stream, 64), make(chan string, 64)
	conn := New(theirs, &echo{streams}, func(line string) { errors <- line })
	served := make(chan error, 1)
	go func() { served <- conn.Serve() }()
	t.Cleanup(func() {
		ours.Close()
		select {
		case <-served:
		case <-time.After(5 * time.Second):
			t.Error("Serve does not end with its port")
		}
	})
	return &host{t: t, pipe: ours, decoder: NewDecoder(ours), streams: streams, errors: errors}
}

func (h *host) send(parts ...[]byte) {
	h.t.Helper()
	_ = h.pipe.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := h.pipe.Write(join(parts...)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) greet(name string) {
	h.t.Helper()
	h.send(greeting(name), frame(0, Hello, `{"name":"`+name+`"}`))
	for { // frames of an older epoch may come first
		_, epoch, err := h.decoder.Next()
		if err != nil {
			h.t.Fatal(err)
		}
		if string(epoch[:]) == name {
			break
		}
	}
	h.expect(0, Hello, `{"welcome":"`+name+`"}`)
}

func (h *host) expect(stream uint32, kind Kind, payload string) {
	h.t.Helper()
	f := h.next()
	if f.Stream != stream || f.Kind != kind || string(f.Payload) != payload {
		h.t.Fatalf("got stream %d kind %d %.200q, want stream %d kind %d %.200q", f.Stream, f.Kind, f.Payload, stream, kind, payload)
	}
}

func (h *host) next() *Frame {
	h.t.Helper()
	_ = h.pipe.SetDeadline(time.Now().Add(5 * time.Second))
	f, _, err := h.decoder.Next()
	if err != nil {
		h.t.Fatal(err)
	}
	if f == nil {
		h.t.Fatal("a greeting came, not a frame")
	}
	return f
}

func TestStreamsAreServed(t *testing.T) {
	h := connect(t)
	h.greet("epoch--1")
	h.send(frame(1, Open, `{}`), frame(3, Open, `{}`))
	h.send(appendFrame(nil, 3, Data, Stderr, []byte("three")))
	h.expect(3, Data, "three")
	h.send(appendFrame(nil, 1, Data, Stdout|Last, []byte("one")))
	h.expect(1, Data, "one")
	h.expect(1, End, `{"exitCode":0}`)
	// The stream is dead: late frames are ignored.
	h.send(frame(1, Data, "late"), frame(1, Reset, `{}`), frame(0, Ping, "12345678"))
	h.expect(0, Pong, "12345678")
}

func TestProtocolErrorsLeadToANewEpoch(t *testing.T) {
	credit := func(n uint32) string {
		var payload [4]byte
		binary.LittleEndian.PutUint32(payload[:], n)
		return string(payload[:])
	}
	cases := map[string][][]byte{
		"unknown kind":               {frame(1, 99, "{}")},
		"OPEN of an even stream":     {frame(2, Open, "{}")},
		"OPEN of a lower stream":     {frame(5, Open, "{}"), frame(3, Open, "{}")},
		"OPEN that is not JSON":      {frame(1, Open, "{")},
		"NOTE that is not JSON":      {frame(1, Open, "{}"), frame(1, Note, "{")},
		"DATA of no stream":          {frame(7, Data, "x")},
		"CREDIT of a wrong size":     {frame(1, Open, "{}"), frame(1, Credit, "123")},
		"a second HELLO":             {frame(0, Hello, "{}")},
		"PING of a wrong size":       {frame(0, Ping, "1234567")},
		"more data than credit":      {frame(1, Open, `{"keep":true}`), frame(1, Data, string(make([]byte, MaxPayload))), frame(1, Data, "x")},
		"a guest's stream, unopened": {frame(2, Credit, credit(1))},
	}
	for name, frames := range cases {
		frames := frames
		t.Run(name, func(t *testing.T) {
			h := connect(t)
			h.greet("epoch--1")
			// The answers are read all the time, as a host would do.
			wire := join(frames...)
			done := make(chan struct{})
			go func() {
				defer close(done)
				h.send(wire, frame(9, Open, "{}"))
				h.send(greeting("epoch--2"), frame(0, Hello, `{"name":"again"}`))
			}()
			for {
				_, epoch, err := h.decoder.Next()
				if err != nil {
					t.Fatal(err)
				}
				if string(epoch[:]) == "epoch--2" {
					break
				}
			}
			<-done
			h.expect(0, Hello, `{"welcome":"again"}`)
			select {
			case <-h.errors:
			default:
				t.Error("no protocol error was seen")
			}
			for len(h.streams) > 0 {
				if s := <-h.streams; !s.Dead() {
					t.Errorf("stream %d outlived its epoch", s.ID())
				}
			}
		})
	}
}

func TestSendWaitsForCredit(t *testing.T) {
	h := connect(t)
	h.greet("epoch--1")
	h.send(frame(1, Open, `{}`))
	s := <-h.streams
	sent := make(chan bool, 1)
	go func() { sent <- s.Send(Stdout, make([]byte, InitialCredit+10)) }()
	if got := len(h.next().Payload); got != InitialCredit {
		t.Fatalf("%d bytes came, want the credit", got)
	}
	// A blocked stream does not block others.
	h.send(frame(0, Ping, "12345678"))
	h.expect(0, Pong, "12345678")
	select {
	case <-sent:
		t.Fatal("more was sent than the credit allows")
	default:
	}
	h.send(frame(1, Credit, "\x04\x00\x00\x00"))
	h.expect(1, Data, "\x00\x00\x00\x00")
	h.send(frame(1, Reset, `{}`))
	if <-sent {
		t.Error("a dead stream claims to have sent everything")
	}
	<-s.receiver.(*receiver).reset
}

func TestCreditIsGrantedInLargePieces(t *testing.T) {
	h := connect(t)
	h.greet("epoch--1")
	h.send(frame(1, Open, `{}`))
	s := <-h.streams
	s.Grant(InitialCredit/2 - 1)
	s.Grant(1)
	h.expect(1, Credit, "\x00\x00\x02\x00")
}

func TestGuestOpensEvenStreams(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	conn := New(theirs, &echo{}, func(string) {})
	if conn.Open(map[string]string{}, nil) != nil {
		t.Fatal("a stream was opened before any greeting")
	}
	go conn.Serve()
	h := &host{t: t, pipe: ours, decoder: NewDecoder(ours)}
	h.greet("epoch--1")
	for _, want := range []uint32{2, 4} {
		opened := make(chan *Stream, 1)
		go func() { opened <- conn.Open(map[string]string{"method": "output"}, nil) }()
		h.expect(want, Open, `{"method":"output"}`)
		if s := <-opened; s.ID() != want {
			t.Errorf("stream %d, want %d", s.ID(), want)
		}
	}
}

func TestTrySendTakesWhatFits(t *testing.T) {
	h := connect(t)
	h.greet("epoch--1")
	h.send(frame(1, Open, `{}`))
	s := <-h.streams
	if got := s.TrySend(Stdout, make([]byte, InitialCredit+1)); got != InitialCredit {
		t.Errorf("%d bytes were taken", got)
	}
	if got := s.TrySend(Stdout, []byte("x")) + int(s.Room()); got != 0 {
		t.Errorf("%d bytes were taken without credit", got)
	}
}

func TestAnswersAreNotEscaped(t *testing.T) {
	got, err := encode("<a> & b")
	if err != nil || string(got) != `"<a> & b"` {
		t.Errorf("got %s, %v", got, err)
	}
}
