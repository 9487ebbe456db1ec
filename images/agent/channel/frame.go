// Package channel implements the framing on the one virtio-serial port between
// host and agent: it finds the host's greeting, splits the bytes into frames,
// and keeps the streams and their credit. It does not know what streams are
// for.
package channel

import (
	"encoding/binary"
	"fmt"
)

// Kind is the type of a frame.
type Kind uint8

// The kinds of frames.
const (
	Hello  Kind = 1
	Open   Kind = 2
	Data   Kind = 3
	Credit Kind = 4
	Note   Kind = 5
	End    Kind = 6
	Reset  Kind = 7
	Ping   Kind = 8
	Pong   Kind = 9
)

// Sub-channels of DATA, in the low bits of its flags.
const (
	Stdin  byte = 0
	Stdout byte = 1
	Stderr byte = 2
	Code   byte = 3
	File   byte = 4

	// Last says that the sub-channel ends after this payload.
	Last    byte = 0x80
	subMask byte = 0x0f
)

const (
	// MaxPayload is the largest payload of one frame, in bytes.
	MaxPayload = 262144
	// InitialCredit is what each side may send on a new stream, in bytes.
	InitialCredit = 262144

	headerSize = 12
	epochSize  = 8
)

// Magic precedes the epoch. Read as a header its length would be 0xffffffff,
// which no frame may have, so at a frame boundary it is unambiguous.
const Magic = "\xff\xff\xff\xffexec-sandbox"

// Epoch identifies one connection of one host.
type Epoch [epochSize]byte

// Frame is one decoded frame. Payload is valid until the next one is decoded.
type Frame struct {
	Stream  uint32
	Kind    Kind
	Flags   byte
	Payload []byte
}

// ProtocolError is how the host violated the framing. The agent answers it by
// dropping the epoch and hunting for the next greeting.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "protocol error: " + e.Reason }

func broken(format string, args ...any) error {
	return &ProtocolError{fmt.Sprintf(format, args...)}
}

func appendFrame(out []byte, stream uint32, kind Kind, flags byte, payload []byte) []byte {
	var header [headerSize]byte
	binary.LittleEndian.PutUint32(header[0:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(header[4:], stream)
	header[8] = byte(kind)
	header[9] = flags
	out = append(out, header[:]...)
	return append(out, payload...)
}

func appendPreamble(out []byte, epoch Epoch) []byte {
	out = append(out, Magic...)
	return append(out, epoch[:]...)
}
