package channel

import (
	"bytes"
	"encoding/binary"
	"io"
)

// Decoder splits a byte stream into greetings and frames. It starts hunting: it
// skips everything before a magic.
type Decoder struct {
	source  io.Reader
	buffer  []byte
	pending []byte // the undecoded part of buffer
	hunting bool
	suspect bool
	before  int // how many bytes of pending came before the loss
}

// NewDecoder returns a hunting decoder.
func NewDecoder(source io.Reader) *Decoder {
	return &Decoder{
		source:  source,
		buffer:  make([]byte, headerSize+MaxPayload+4096),
		hunting: true,
	}
}

// Hunt makes it skip everything up to the next magic.
func (d *Decoder) Hunt() { d.hunting = true }

// Lost tells the decoder that the host seems to have gone. If the next bytes
// are a greeting, they must not be taken for the rest of the old host's last
// frame. If they are not, the host is the same: the kernel reported the loss
// late.
func (d *Decoder) Lost() {
	d.suspect = true
	d.before = len(d.pending)
}

// settle reads until it is known whether a greeting follows a loss.
func (d *Decoder) settle() error {
	for d.suspect {
		fresh := d.pending[d.before:]
		switch {
		case bytes.HasPrefix(fresh, []byte(Magic)):
			d.pending = fresh
			d.suspect = false
		case bytes.HasPrefix([]byte(Magic), fresh):
			if err := d.fill(); err != nil {
				return err
			}
		default:
			d.suspect = false
		}
	}
	return nil
}

// Next returns the next frame, or the epoch of a new greeting when frame is
// nil. After a ProtocolError the caller must Hunt.
func (d *Decoder) Next() (frame *Frame, epoch Epoch, err error) {
	if err := d.settle(); err != nil {
		return nil, epoch, err
	}
	for d.hunting {
		if at := bytes.Index(d.pending, []byte(Magic)); at >= 0 {
			d.pending = d.pending[at:]
			d.hunting = false
			break
		}
		if keep := len(Magic) - 1; len(d.pending) > keep {
			d.pending = d.pending[len(d.pending)-keep:]
		}
		if err := d.fill(); err != nil {
			return nil, epoch, err
		}
	}
	if err := d.need(headerSize); err != nil {
		return nil, epoch, err
	}
	length := binary.LittleEndian.Uint32(d.pending)
	if length == 0xffffffff {
		return nil, epoch, d.greeting(&epoch)
	}
	if length > MaxPayload {
		return nil, epoch, broken("a frame of %d bytes", length)
	}
	if err := d.need(headerSize + int(length)); err != nil {
		return nil, epoch, err
	}
	header := d.pending[:headerSize]
	if header[10] != 0 || header[11] != 0 {
		return nil, epoch, broken("reserved bytes are set")
	}
	frame = &Frame{
		Stream:  binary.LittleEndian.Uint32(header[4:]),
		Kind:    Kind(header[8]),
		Flags:   header[9],
		Payload: d.pending[headerSize : headerSize+int(length)],
	}
	d.pending = d.pending[headerSize+int(length):]
	return frame, epoch, nil
}

func (d *Decoder) greeting(epoch *Epoch) error {
	size := len(Magic) + epochSize
	if err := d.need(size); err != nil {
		return err
	}
	if string(d.pending[:len(Magic)]) != Magic {
		return broken("neither a frame nor a greeting")
	}
	copy(epoch[:], d.pending[len(Magic):size])
	d.pending = d.pending[size:]
	return nil
}

func (d *Decoder) need(size int) error {
	for len(d.pending) < size {
		if err := d.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill reads once, after what is pending. It moves that to the front only when
// the rest of the buffer is too small to be worth a system call.
func (d *Decoder) fill() error {
	start := cap(d.buffer) - cap(d.pending)
	if len(d.pending) == 0 {
		start = 0
	} else if cap(d.pending)-len(d.pending) < 4096 {
		copy(d.buffer, d.pending)
		start = 0
	}
	end := start + len(d.pending)
	n, err := d.source.Read(d.buffer[end:])
	if n > 0 {
		d.pending = d.buffer[start : end+n]
		return nil
	}
	d.pending = d.buffer[start:end]
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}
