package egress

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"strings"
	"testing"
)

// segment is a TCP packet with correct checksums.
func segment(source, destination uint32, sourcePort, targetPort uint16, flags byte, payload []byte) []byte {
	out := make([]byte, 40+len(payload))
	copy(out[40:], payload)
	ipHeader(out, protocolTCP, source, destination)
	tcp := out[20:]
	binary.BigEndian.PutUint16(tcp[0:], sourcePort)
	binary.BigEndian.PutUint16(tcp[2:], targetPort)
	binary.BigEndian.PutUint32(tcp[4:], 1000)
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[16:], ^fold(sum(sum(protocolTCP+uint32(len(tcp)), out[12:20]), tcp)))
	return out
}

// sound reports whether both checksums of a packet are correct.
func sound(b []byte) bool {
	if fold(sum(0, b[:20])) != 0xffff {
		return false
	}
	if b[9] == protocolICMP {
		return fold(sum(0, b[20:])) == 0xffff
	}
	return fold(sum(sum(protocolTCP+uint32(len(b)-20), b[12:20]), b[20:])) == 0xffff
}

func TestRewriteKeepsChecksums(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for i := 0; i < 2000; i++ {
		payload := make([]byte, random.Intn(100))
		random.Read(payload)
		b := segment(random.Uint32(), random.Uint32(), uint16(random.Uint32()), uint16(random.Uint32()), flagAck, payload)
		p, ok := parse(b)
		if !ok || !sound(b) {
			t.Fatalf("packet %d has a wrong checksum before", i)
		}
		source, destination := random.Uint32(), random.Uint32()
		p.rewrite(source, destination, 7, 9)
		if p.source() != source || p.destination() != destination || p.sourcePort() != 7 || p.targetPort() != 9 {
			t.Fatalf("packet %d has wrong addresses", i)
		}
		if !sound(b) {
			t.Fatalf("packet %d has a wrong checksum", i)
		}
	}
}

func TestAnswersToAPacket(t *testing.T) {
	p, ok := parse(segment(guestAddress, 0x0a000001, 40000, 80, flagSyn, nil))
	if !ok {
		t.Fatal("not parsed")
	}
	r := reset(p)
	if !sound(r) || r[33] != flagRst|flagAck || binary.BigEndian.Uint32(r[28:]) != 1001 {
		t.Errorf("reset: % x", r)
	}
	u := unreachable(p, netUnreachable)
	if !sound(u) || u[20] != 3 || u[21] != 0 || !bytes.Equal(u[28:], p.bytes[:28]) {
		t.Errorf("unreachable: % x", u)
	}
}

func TestParseTakesAnything(t *testing.T) {
	good := segment(guestAddress, 0x0a000001, 40000, 80, flagSyn, []byte("x"))
	for n := 0; n < len(good); n++ {
		if _, ok := parse(good[:n]); ok {
			t.Errorf("%d of %d bytes are a packet", n, len(good))
		}
	}
	random := rand.New(rand.NewSource(2))
	for i := 0; i < 50000; i++ {
		b := append([]byte{}, good...)
		b[random.Intn(len(b))] = byte(random.Uint32())
		if p, ok := parse(b); ok {
			p.rewrite(1, 2, 3, 4)
			reset(p)
			unreachable(p, hostUnreachable)
		}
	}
}

func query(name string, kind uint16) []byte {
	out := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, label := range strings.Split(name, ".") {
		out = append(append(out, byte(len(label))), label...)
	}
	out = append(out, 0)
	out = binary.BigEndian.AppendUint16(out, kind)
	return binary.BigEndian.AppendUint16(out, classIN)
}

func TestAnswersQueries(t *testing.T) {
	names := newNames()
	q := query("Example.COM", typeA)
	reply := answer(q, names)
	if len(reply) != len(q)+16 || !bytes.Equal(reply[:2], q[:2]) || reply[2] != 0x81 || reply[3] != 0x80 || reply[7] != 1 {
		t.Fatalf("got % x", reply)
	}
	address := binary.BigEndian.Uint32(reply[len(reply)-4:])
	if names.host(address) != "example.com" || names.address("example.com") != address {
		t.Errorf("%x is %q", address, names.host(address))
	}
	for _, c := range []struct {
		what    string
		query   []byte
		code    byte
		answers byte
	}{
		{"AAAA", query("example.com", 28), 0, 0},
		{"MX", query("example.com", 15), 0, 0},
		{"a name that is no host's", query("a b.com", typeA), codeNoName, 0},
		{"two questions", append([]byte{0, 0, 1, 0, 0, 2}, q[6:]...), codeFormat, 0},
		{"another operation", append([]byte{0, 0, 0x10}, q[3:]...), codeNotDone, 0},
		{"half a question", q[:20], codeFormat, 0},
		{"a pointer", append(append([]byte{}, q[:12]...), 0xc0, 12, 0, 1, 0, 1), codeFormat, 0},
	} {
		r := answer(c.query, names)
		if r == nil || r[3]&0x0f != c.code || r[7] != c.answers {
			t.Errorf("%s: got % x", c.what, r)
		}
	}
	if answer(reply, names) != nil || answer(q[:11], names) != nil {
		t.Error("a packet that is no query is answered")
	}
	random := rand.New(rand.NewSource(3))
	for i := 0; i < 50000; i++ {
		b := append([]byte{}, q...)
		b[random.Intn(len(b))] = byte(random.Uint32())
		answer(b[:random.Intn(len(b)+1)], names)
	}
}

func TestNamesAreLimited(t *testing.T) {
	names := newNames()
	kept := names.address("kept.example")
	for i := 0; i < 2*addresses; i++ {
		names.address(fmt.Sprintf("n%d.example", i))
		if i%1000 == 0 && names.host(kept) != "kept.example" {
			t.Fatalf("forgotten after %d names although it was in use", i)
		}
	}
	if len(names.byName) != maxNames || len(names.byAddress) != maxNames || names.used.Len() != maxNames {
		t.Errorf("%d names, %d addresses, %d in order", len(names.byName), len(names.byAddress), names.used.Len())
	}
	if got := names.host(0x01020304); got != "1.2.3.4" {
		t.Errorf("got %q", got)
	}
}
