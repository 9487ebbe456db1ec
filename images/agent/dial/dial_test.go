package dial

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"exec-sandbox/agent/channel"
)

func TestListens(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue\n"
	row := func(address, port, state string) string {
		return fmt.Sprintf("%s   0: %s:%s 00000000:0000 %s 00000000:00000000 00:00000000\n", head, address, port, state)
	}
	for _, c := range []struct {
		name, table string
		want        bool
	}{
		{"every address", row("00000000", "1F90", "0A"), true},
		{"loopback", row("0100007F", "1F90", "0A"), true},
		{"every IPv6 address", row("00000000000000000000000000000000", "1F90", "0A"), true},
		{"IPv6 loopback", row("00000000000000000000000001000000", "1F90", "0A"), true},
		{"mapped", row("0000000000000000FFFF00000100007F", "1F90", "0A"), true},
		{"another address", row("0700C6C6", "1F90", "0A"), false},
		{"another port", row("00000000", "1F91", "0A"), false},
		{"a connection", row("0100007F", "1F90", "01"), false},
		{"nothing", head, false},
		{"garbage", "a b c 0A\nx: y:z 0 0A\n\n:", false},
	} {
		open := map[int]bool{}
		listens([]byte(c.table), open)
		if open[8080] != c.want {
			t.Errorf("%s: %v", c.name, open)
		}
	}
}

// handler serves this package and nothing else.
type handler struct{}

func (handler) Hello([]byte) (any, error) { return struct{}{}, nil }
func (handler) Open(s *channel.Stream, payload []byte) error {
	Open(s, payload)
	return nil
}

// host acts as the host: send writes frames, next returns the answers.
func host(t *testing.T) (send func(kind channel.Kind, flags byte, payload string), next func() string) {
	t.Helper()
	ours, theirs := net.Pipe()
	conn := channel.New(theirs, handler{}, func(string) {})
	go conn.Serve()
	t.Cleanup(func() { _ = ours.Close() })
	_ = ours.SetDeadline(time.Now().Add(20 * time.Second))
	decoder := channel.NewDecoder(ours)
	frames := make(chan string, 1000)
	go func() {
		defer close(frames)
		for {
			frame, _, err := decoder.Next()
			if err != nil {
				return
			}
			if frame != nil && frame.Stream != 0 {
				frames <- fmt.Sprintf("%d %x %s", frame.Kind, frame.Flags, frame.Payload)
			}
		}
	}()
	if _, err := ours.Write(channel.AppendGreeting(nil, channel.Epoch{1}, []byte("{}"))); err != nil {
		t.Fatal(err)
	}
	send = func(kind channel.Kind, flags byte, payload string) {
		if _, err := ours.Write(channel.AppendFrame(nil, 1, kind, flags, []byte(payload))); err != nil {
			t.Fatal(err)
		}
	}
	return send, func() string { return <-frames }
}

func listen(t *testing.T, address string) (*net.TCPListener, int) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener), l.Addr().(*net.TCPAddr).Port
}

func TestHalfClose(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, port := listen(t, address)
		go func() { // ends with its one client: it answers when it has read everything
			server, err := l.Accept()
			if err != nil {
				return
			}
			all, _ := io.ReadAll(server)
			_, _ = server.Write(append([]byte("heard "), all...))
			_ = server.Close()
		}()
		send, next := host(t)
		send(channel.Open, 0, fmt.Sprintf(`{"method":"dial","port":%d}`, port))
		send(channel.Data, channel.Stdin, "one ")
		send(channel.Data, channel.Stdin|channel.Last, "two")
		for _, want := range []string{`5 0 {"event":"connected"}`, "3 1 heard one two", "3 81 ", "6 0 {}"} {
			if got := next(); got != want {
				t.Errorf("%s: got %q, want %q", address, got, want)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	l, port := listen(t, "127.0.0.1:0")
	_ = l.Close()
	for request, want := range map[string]string{
		fmt.Sprintf(`{"method":"dial","port":%d}`, port): "refused",
		`{"method":"dial","port":0}`:                     "invalid",
		`{"method":"dial","port":65536}`:                 "invalid",
		`{"method":"listening","port":1,"timeoutMs":-1}`: "invalid",
		`{"method":"dial","port":"80"}`:                  "invalid",
	} {
		send, next := host(t)
		send(channel.Open, 0, request)
		var reset struct{ Code string }
		got := next()
		if err := json.Unmarshal([]byte(got[4:]), &reset); err != nil || got[:4] != "7 0 " || reset.Code != want {
			t.Errorf("%s: got %q, want %s", request, got, want)
		}
	}
}

func TestResetReachesTheServer(t *testing.T) {
	l, port := listen(t, "127.0.0.1:0")
	send, next := host(t)
	send(channel.Open, 0, fmt.Sprintf(`{"method":"dial","port":%d}`, port))
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	next()
	send(channel.Reset, 0, `{"code":"cancelled","message":""}`)
	_ = server.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := server.Read(make([]byte, 1)); codeOf(err) != "reset" {
		t.Errorf("the server saw %v", err)
	}
}

func TestWaits(t *testing.T) {
	l, port := listen(t, "127.0.0.1:0")
	defer l.Close()
	for _, c := range []struct {
		port int
		want string
	}{{port, `6 0 {"listening":true}`}, {1, `6 0 {"listening":false}`}} {
		send, next := host(t)
		send(channel.Open, 0, fmt.Sprintf(`{"method":"listening","port":%d,"timeoutMs":30}`, c.port))
		if got := next(); got != c.want {
			t.Errorf("port %d: %s", c.port, got)
		}
	}
}
