package egress

import (
	"encoding/binary"
	"strings"
)

// Numbers of DNS (RFC 1035).
const (
	typeA       = 1
	typeAny     = 255
	classIN     = 1
	codeFormat  = 1
	codeNoName  = 3
	codeNotDone = 4
	headerBytes = 12
	ttlSeconds  = 60
)

// answer is the reply to a query, nil for a packet that is no query. Every name
// has an address: only when a program connects to it does the host find out
// whether it exists and may be reached. There are no other records, and no
// IPv6.
func answer(query []byte, names *names) []byte {
	if len(query) < headerBytes || query[2]&0x80 != 0 {
		return nil
	}
	name, end := question(query)
	var kind, class uint16
	if end > 0 {
		kind, class = binary.BigEndian.Uint16(query[end-4:]), binary.BigEndian.Uint16(query[end-2:])
	} else {
		end = headerBytes
	}
	reply := append(make([]byte, 0, end+16), query[:end]...)
	for i := 4; i < headerBytes; i++ {
		reply[i] = 0
	}
	reply[2] = 0x80 | query[2]&0x79 // a response to this operation
	reply[3] = 0x80                 // recursion is available
	switch {
	case query[2]&0x78 != 0:
		reply[3] |= codeNotDone
		return reply[:headerBytes]
	case end == headerBytes:
		reply[3] |= codeFormat
		return reply
	}
	reply[5] = 1
	if name == "" || class != classIN {
		reply[3] |= codeNoName
		return reply
	}
	if kind != typeA && kind != typeAny {
		return reply
	}
	reply[7] = 1
	record := [16]byte{0xc0, headerBytes, 0, typeA, 0, classIN, 0, 0, 0, ttlSeconds, 0, 4}
	binary.BigEndian.PutUint32(record[12:], names.address(name))
	return append(reply, record[:]...)
}

// question reads the only question of a query: its name in lower case, empty
// when it cannot be a host name, and where the question ends, 0 when it is
// malformed.
func question(query []byte) (name string, end int) {
	if binary.BigEndian.Uint16(query[4:]) != 1 {
		return "", 0
	}
	var out strings.Builder
	host := true
	at := headerBytes
	for {
		if at >= len(query) {
			return "", 0
		}
		length := int(query[at])
		at++
		if length == 0 {
			break
		}
		if length > 63 || at+length > len(query) || out.Len()+length > 254 {
			return "", 0
		}
		if out.Len() > 0 {
			out.WriteByte('.')
		}
		for _, c := range query[at : at+length] {
			switch {
			case c >= 'A' && c <= 'Z':
				c += 'a' - 'A'
			case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
			default:
				host = false
			}
			out.WriteByte(c)
		}
		at += length
	}
	if at+4 > len(query) {
		return "", 0
	}
	if !host || out.Len() > maxNameLength {
		return "", at + 4
	}
	return out.String(), at + 4
}
