package output

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPipeOutlivesItsProgram(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	_ = unix.SetNonblock(ends[0], true)
	var before, after bytes.Buffer
	p := NewPipe(ends[0], func(payload []byte) { before.Write(payload) })
	if _, err := unix.Write(ends[1], []byte("before")); err != nil {
		t.Fatal(err)
	}
	p.Drain(func(payload []byte) { after.Write(payload) })
	p.Start()
	// A child that lives on can write any amount.
	for left := make([]byte, 3_000_000); len(left) > 0; {
		n, err := unix.Write(ends[1], left)
		if err != nil {
			t.Fatal(err)
		}
		left = left[n:]
	}
	_ = unix.Close(ends[1])
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		gone := p.gone
		p.mu.Unlock()
		if gone {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the last writer's end takes too long")
		}
	}
	if before.String() != "before" || after.Len() != 3_000_000 {
		t.Errorf("got %q before and %d bytes after", before.String(), after.Len())
	}
}
