package process

import (
	"bytes"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair is a pipe whose given end is non-blocking, like the agent's ends.
func pair(t *testing.T, ours int) (reading, writing *os.File) {
	t.Helper()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(pipe[ours], true); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(pipe[0]), "reading"), os.NewFile(uintptr(pipe[1]), "writing")
}

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal(what + " takes too long")
	}
}

func TestInputGoesAtTheReadersPace(t *testing.T) {
	reading, writing := pair(t, 1)
	granted := make(chan int, 100)
	i := newInput(func(n int) { granted <- n })
	block := bytes.Repeat([]byte("x"), 100_000) // more than a pipe holds
	i.push(block, false)
	i.push([]byte("end"), true)
	i.push([]byte("after the end"), false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.write(writing, false)
	}()
	select {
	case n := <-granted:
		t.Fatalf("%d bytes are granted that nobody has read", n)
	case <-time.After(50 * time.Millisecond):
	}
	var all bytes.Buffer
	if _, err := all.ReadFrom(reading); err != nil {
		t.Fatal(err)
	}
	within(t, "the end", done)
	if want := string(block) + "end"; all.String() != want {
		t.Errorf("got %d bytes, want %d", all.Len(), len(want))
	}
	if a, b := <-granted, <-granted; a != 100_000 || b != 3 {
		t.Errorf("granted %d and %d", a, b)
	}
}

func TestInputStops(t *testing.T) {
	reading, writing := pair(t, 1)
	defer reading.Close()
	i := newInput(func(int) {})
	i.push(make([]byte, 200_000), false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.write(writing, false)
	}()
	i.stop()
	within(t, "stopping", done)
}

func TestInputOutlivesItsReader(t *testing.T) {
	reading, writing := pair(t, 1)
	_ = reading.Close()
	total := 0
	i := newInput(func(n int) { total += n })
	i.push([]byte("one"), false)
	i.push([]byte("two"), true)
	i.write(writing, false)
	if total != 6 {
		t.Errorf("%d bytes are granted", total)
	}
}

func TestTerminal(t *testing.T) {
	master, slave, err := openTerminal(os.Getuid(), size{77, 33})
	if err != nil {
		t.Skip(err) // there may be no /dev/ptmx, or no permission for it
	}
	defer unix.Close(master)
	defer unix.Close(slave)
	if err := resize(master, size{10000, 1}); err != nil {
		t.Fatal(err)
	}
	got, err := unix.IoctlGetWinsize(slave, unix.TIOCGWINSZ)
	if err != nil || got.Col != 10000 || got.Row != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	for last, want := range map[byte]string{'\n': "\x04", '\r': "\x04", 'x': "\x04\x04"} {
		if got := string(endOfFile(master, last)); got != want {
			t.Errorf("after %q: got %q", last, got)
		}
	}
}
