package dial

import (
	"bytes"
	"context"
	"io"
	"os"
	"strconv"
	"time"

	"exec-sandbox/agent/channel"
)

const (
	// look is how often a waiter looks. It looks at the kernel's table because
	// a connection would be one that the server sees.
	look = 15 * time.Millisecond
	// maxTable bounds what is read of the table, whose length is up to user code.
	maxTable = 4 << 20
)

// waiter is told when its host has left.
type waiter struct{ cancel context.CancelFunc }

func (w waiter) Data(byte, []byte, bool) {}
func (w waiter) Note([]byte)             {}
func (w waiter) Reset()                  { w.cancel() }

// wait ends its stream when somebody listens at the port or the time is over.
func wait(ctx context.Context, cancel context.CancelFunc, stream *channel.Stream, r *request) {
	defer cancel()
	deadline := time.Now().Add(time.Duration(r.TimeoutMs) * time.Millisecond)
	for {
		found := listening(r.Port)
		if found || !time.Now().Before(deadline) {
			stream.End(map[string]bool{"listening": found})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(look):
		}
	}
}

func listening(port int) bool {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(name)
		if err != nil {
			continue
		}
		table, err := io.ReadAll(io.LimitReader(file, maxTable))
		_ = file.Close()
		if err == nil && listens(table, port) {
			return true
		}
	}
	return false
}

// reachable are the addresses, as the kernel prints them, at which a connect to
// 127.0.0.1 or ::1 arrives.
var reachable = map[string]bool{
	"00000000":                         true, // 0.0.0.0
	"0100007F":                         true, // 127.0.0.1
	"00000000000000000000000000000000": true, // ::
	"00000000000000000000000001000000": true, // ::1
	"0000000000000000FFFF000000000000": true, // ::ffff:0.0.0.0
	"0000000000000000FFFF00000100007F": true, // ::ffff:127.0.0.1
}

// listens says whether a table of /proc/net has a listener of that port that
// can be reached over the loopback.
func listens(table []byte, port int) bool {
	for _, line := range bytes.Split(table, []byte{'\n'}) {
		fields := bytes.Fields(line)
		if len(fields) < 4 || string(fields[3]) != "0A" {
			continue
		}
		at := bytes.IndexByte(fields[1], ':')
		if at < 0 || !reachable[string(fields[1][:at])] {
			continue
		}
		number, err := strconv.ParseUint(string(fields[1][at+1:]), 16, 16)
		if err == nil && int(number) == port {
			return true
		}
	}
	return false
}
