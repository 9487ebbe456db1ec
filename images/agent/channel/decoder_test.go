package channel

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"testing"
)

// chunks is a reader that returns its pieces one by one; an empty piece is a
// lost host.
type chunks [][]byte

func (c *chunks) Read(p []byte) (int, error) {
	if len(*c) == 0 {
		return 0, io.EOF
	}
	head := (*c)[0]
	if len(head) == 0 {
		*c = (*c)[1:]
		return 0, ErrLost
	}
	n := copy(p, head)
	if n == len(head) {
		*c = (*c)[1:]
	} else {
		(*c)[0] = head[n:]
	}
	return n, nil
}

func greeting(epoch string) []byte {
	var e Epoch
	copy(e[:], epoch)
	return appendPreamble(nil, e)
}

func frame(stream uint32, kind Kind, payload string) []byte {
	return appendFrame(nil, stream, kind, 0, []byte(payload))
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// decode lists what a decoder finds in the pieces, as "epoch:" and payloads.
func decode(pieces chunks) (got []string) {
	d := NewDecoder(&pieces)
	for {
		f, epoch, err := d.Next()
		var bad *ProtocolError
		switch {
		case errors.As(err, &bad):
			got = append(got, "!")
			d.Hunt()
		case errors.Is(err, ErrLost):
			d.Lost()
		case err != nil:
			return got
		case f == nil:
			got = append(got, "epoch:"+string(epoch[:]))
		default:
			got = append(got, string(f.Payload))
		}
	}
}

func TestDecoder(t *testing.T) {
	g := greeting("epoch--1")
	g2 := greeting("epoch--2")
	f := frame(1, Data, "one")
	large := bytes.Repeat([]byte("x"), MaxPayload)
	tooLong := []byte{1, 0, 4, 0, 1, 0, 0, 0, 3, 0, 0, 0}
	reserved := []byte{0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 1, 0}
	cases := []struct {
		name   string
		pieces chunks
		want   []string
	}{
		{"frames follow a greeting", chunks{join(g, f, f)}, []string{"epoch:epoch--1", "one", "one"}},
		{"what comes before a magic is thrown away", chunks{join([]byte("noise\xff\xff\xff"), g, f)}, []string{"epoch:epoch--1", "one"}},
		{"without a magic there is nothing", chunks{f, f}, nil},
		{"a magic at a frame boundary starts an epoch", chunks{join(g, f, g2, f)}, []string{"epoch:epoch--1", "one", "epoch:epoch--2", "one"}},
		{"a magic inside a payload is payload", chunks{join(g, frame(1, Data, string(g2)))}, []string{"epoch:epoch--1", string(g2)}},
		{"the largest frame", chunks{join(g, frame(1, Data, string(large)), f)}, []string{"epoch:epoch--1", string(large), "one"}},
		{"a frame that is too long", chunks{join(g, tooLong, f, g2, f)}, []string{"epoch:epoch--1", "!", "epoch:epoch--2", "one"}},
		{"reserved bytes", chunks{join(g, reserved, g2)}, []string{"epoch:epoch--1", "!", "epoch:epoch--2"}},
		{"almost a magic", chunks{join(g, []byte("\xff\xff\xff\xffexec-sandbix--------"), g2)}, []string{"epoch:epoch--1", "!", "epoch:epoch--2"}},
		{"half a frame of a lost host", chunks{join(g, f[:7]), {}, join(g2, f)}, []string{"epoch:epoch--1", "epoch:epoch--2", "one"}},
		{"half a frame, then a greeting in pieces", chunks{join(g, f[:7]), {}, g2[:5], g2[5:], f}, []string{"epoch:epoch--1", "epoch:epoch--2", "one"}},
		{"a loss that was none", chunks{g, {}, f}, []string{"epoch:epoch--1", "one"}},
		{"a loss that was none, inside a greeting", chunks{g[:9], {}, g[9:], f}, []string{"epoch:epoch--1", "one"}},
		{"a loss that was none, inside a frame", chunks{join(g, f[:7]), {}, f[7:], f}, []string{"epoch:epoch--1", "one", "one"}},
	}
	for _, c := range cases {
		c := c
		t.Run(c.name, func(t *testing.T) {
			got := decode(append(chunks{}, c.pieces...))
			if len(got) != len(c.want) {
				t.Fatalf("got %.100q, want %.100q", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("at %d: got %.60q, want %.60q", i, got[i], c.want[i])
				}
			}
		})
	}
}

// The frames are the same however the bytes are cut.
func TestDecoderAnyCut(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for round := 0; round < 200; round++ {
		var wire []byte
		var want []string
		wire = append(wire, greeting("epoch--1")...)
		want = append(want, "epoch:epoch--1")
		for i := 0; i < 20; i++ {
			payload := make([]byte, random.Intn(9000))
			random.Read(payload)
			wire = appendFrame(wire, 1, Data, 0, payload)
			want = append(want, string(payload))
		}
		var pieces chunks
		for len(wire) > 0 {
			n := 1 + random.Intn(5000)
			if n > len(wire) {
				n = len(wire)
			}
			pieces = append(pieces, wire[:n])
			wire = wire[n:]
		}
		got := decode(pieces)
		if len(got) != len(want) {
			t.Fatalf("round %d: %d items, want %d", round, len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("round %d: item %d differs", round, i)
			}
		}
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add(join(greeting("epoch--1"), frame(1, Data, "one"), greeting("epoch--2")), 7)
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xffexec-sandbox12345678"), 1)
	f.Fuzz(func(t *testing.T, wire []byte, size int) {
		if size < 1 || size > 1<<16 {
			size = 1
		}
		var pieces chunks
		for rest := wire; len(rest) > 0; {
			n := size
			if n > len(rest) {
				n = len(rest)
			}
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		whole := decode(chunks{append([]byte{}, wire...)})
		cut := decode(pieces)
		if len(wire) == 0 {
			return
		}
		if len(whole) != len(cut) {
			t.Fatalf("%d items whole, %d cut", len(whole), len(cut))
		}
	})
}
