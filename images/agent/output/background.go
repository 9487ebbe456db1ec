package output

import (
	"sync"

	"exec-sandbox/agent/channel"
)

// elsewhere stands for executions of an earlier host, whose numbers mean
// nothing to the present one.
const elsewhere = 1<<32 - 1

// Background sends the host what is written after an execution's end, on one
// stream for each epoch. It never waits: output for which there is no credit is
// counted and dropped.
type Background struct {
	Conn *channel.Conn // set before anything is written

	mu      sync.Mutex
	since   uint64 // the first epoch of the present host
	epoch   uint64
	stream  *channel.Stream
	origin  uint32
	dropped int64
}

// Greeted is called when a host greets that knows nothing about what ran
// before.
func (b *Background) Greeted() {
	if b.Conn == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = b.Conn.Epoch()
}

// Sink returns where the output of an ended execution goes.
func (b *Background) Sink(epoch uint64, execution uint32, sub byte) func([]byte) {
	return func(payload []byte) { b.write(epoch, execution, sub, payload) }
}

func (b *Background) write(epoch uint64, execution uint32, sub byte, payload []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.Conn.Epoch()
	if epoch < b.since {
		execution = elsewhere
	}
	if b.stream == nil || b.epoch != current {
		b.stream = b.Conn.Open(map[string]string{"method": "output"}, silent{})
		b.epoch, b.origin, b.dropped = current, 0, 0
		if b.stream == nil {
			return
		}
	}
	if b.stream.Dead() {
		return
	}
	if b.dropped > 0 && b.stream.Room() > 0 {
		b.stream.Note(map[string]int64{"dropped": b.dropped})
		b.dropped = 0
	}
	if b.origin != execution && b.stream.Room() > 0 {
		b.stream.Note(map[string]uint32{"execution": execution})
		b.origin = execution
	}
	if b.origin != execution {
		b.dropped += int64(len(payload))
		return
	}
	b.dropped += int64(len(payload) - b.stream.TrySend(sub, payload))
}

// silent ignores everything: the host only grants credit on this stream.
type silent struct{}

func (silent) Data(byte, []byte, bool) {}
func (silent) Note([]byte)             {}
func (silent) Reset()                  {}
