package channel

// AppendGreeting appends what a host sends first: magic, epoch and HELLO. The
// agent uses it to act as the host of a child process of its own.
func AppendGreeting(out []byte, epoch Epoch, hello []byte) []byte {
	return appendFrame(appendPreamble(out, epoch), 0, Hello, 0, hello)
}

// AppendFrame appends one frame.
func AppendFrame(out []byte, stream uint32, kind Kind, flags byte, payload []byte) []byte {
	return appendFrame(out, stream, kind, flags, payload)
}
