package egress

import "encoding/binary"

// Flags of TCP.
const (
	flagFin byte = 0x01
	flagSyn byte = 0x02
	flagRst byte = 0x04
	flagAck byte = 0x10
)

// Codes of ICMP's "destination unreachable", by the errno that a connect gets.
const (
	icmpUnreachable         = 3
	netUnreachable     byte = 0 // ENETUNREACH
	hostUnreachable    byte = 1 // EHOSTUNREACH
	protocolTCP             = 6
	protocolICMP            = 1
	minimalHeader           = 20
	moreFragments           = 0x2000
	fragmentOffsetMask      = 0x1fff
)

// packet is one IPv4 packet that holds a whole TCP header.
type packet struct {
	bytes []byte // the packet, no more
	tcp   []byte // from the TCP header on
}

// parse reads a packet from the device; user code can send anything.
func parse(b []byte) (packet, bool) {
	if len(b) < minimalHeader || b[0]>>4 != 4 || b[9] != protocolTCP {
		return packet{}, false
	}
	header := int(b[0]&0x0f) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	fragment := binary.BigEndian.Uint16(b[6:])
	if header < minimalHeader || total > len(b) || total < header+minimalHeader ||
		fragment&(moreFragments|fragmentOffsetMask) != 0 {
		return packet{}, false
	}
	return packet{bytes: b[:total], tcp: b[header:total]}, true
}

func (p packet) source() uint32      { return binary.BigEndian.Uint32(p.bytes[12:]) }
func (p packet) destination() uint32 { return binary.BigEndian.Uint32(p.bytes[16:]) }
func (p packet) sourcePort() uint16  { return binary.BigEndian.Uint16(p.tcp) }
func (p packet) targetPort() uint16  { return binary.BigEndian.Uint16(p.tcp[2:]) }
func (p packet) flags() byte         { return p.tcp[13] }

// rewrite changes the packet's addresses and ports, and updates both checksums
// instead of computing them again: a packet may be 64 KiB long.
func (p packet) rewrite(source, destination uint32, sourcePort, targetPort uint16) {
	var before, after [12]byte
	copy(before[:], p.bytes[12:20])
	copy(before[8:], p.tcp[:4])
	binary.BigEndian.PutUint32(after[0:], source)
	binary.BigEndian.PutUint32(after[4:], destination)
	binary.BigEndian.PutUint16(after[8:], sourcePort)
	binary.BigEndian.PutUint16(after[10:], targetPort)
	update(p.bytes[10:12], before[:8], after[:8])
	update(p.tcp[16:18], before[:], after[:])
	copy(p.bytes[12:20], after[:8])
	copy(p.tcp[:4], after[8:])
}

// update updates an Internet checksum for bytes that have changed (RFC 1624).
func update(checksum, before, after []byte) {
	sum := uint32(^binary.BigEndian.Uint16(checksum))
	for i := 0; i < len(before); i += 2 {
		sum += uint32(^binary.BigEndian.Uint16(before[i:])) + uint32(binary.BigEndian.Uint16(after[i:]))
	}
	binary.BigEndian.PutUint16(checksum, ^fold(sum))
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// sum adds up bytes for an Internet checksum.
func sum(start uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		start += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		start += uint32(b[0]) << 8
	}
	return start
}

func ipHeader(out []byte, protocol byte, source, destination uint32) {
	out[0] = 0x45
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
	out[8] = 64
	out[9] = protocol
	binary.BigEndian.PutUint32(out[12:], source)
	binary.BigEndian.PutUint32(out[16:], destination)
	binary.BigEndian.PutUint16(out[10:], ^fold(sum(0, out[:minimalHeader])))
}

// reset is the RST that answers a packet: a connect gets ECONNREFUSED.
func reset(p packet) []byte {
	out := make([]byte, 40)
	ipHeader(out, protocolTCP, p.destination(), p.source())
	tcp := out[20:]
	binary.BigEndian.PutUint16(tcp[0:], p.targetPort())
	binary.BigEndian.PutUint16(tcp[2:], p.sourcePort())
	tcp[12] = 5 << 4
	if p.flags()&flagAck != 0 {
		copy(tcp[4:8], p.tcp[8:12])
		tcp[13] = flagRst
	} else {
		length := uint32(len(p.tcp)) - uint32(p.tcp[12]>>4)*4
		if p.flags()&(flagSyn|flagFin) != 0 {
			length++
		}
		binary.BigEndian.PutUint32(tcp[8:], binary.BigEndian.Uint32(p.tcp[4:])+length)
		tcp[13] = flagRst | flagAck
	}
	pseudo := sum(protocolTCP+uint32(len(tcp)), out[12:20])
	binary.BigEndian.PutUint16(tcp[16:], ^fold(sum(pseudo, tcp)))
	return out
}

// unreachable is the ICMP message that answers a packet with a code.
func unreachable(p packet, code byte) []byte {
	header := len(p.bytes) - len(p.tcp)
	out := make([]byte, minimalHeader+8+header+8)
	ipHeader(out, protocolICMP, p.destination(), p.source())
	icmp := out[minimalHeader:]
	icmp[0], icmp[1] = icmpUnreachable, code
	copy(icmp[8:], p.bytes[:header+8])
	binary.BigEndian.PutUint16(icmp[2:], ^fold(sum(0, icmp)))
	return out
}
