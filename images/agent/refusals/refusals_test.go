package refusals

import (
	"encoding/binary"
	"net"
	"os"
	"strconv"
	"testing"
)

func TestDecides(t *testing.T) {
	curl, shell, git, interpreter := member{30, false}, member{20, true}, member{21, false}, member{10, true}
	for _, c := range []struct {
		what   string
		line   []member
		failed map[int]failure
		cause  Cause
		want   bool
	}{
		{"the program itself", []member{curl}, nil, Cause{Processes: []int{30}, Status: 7}, true},
		{"another program", []member{curl}, map[int]failure{30: {5, 7}}, Cause{Processes: []int{31}, Status: 7}, false},
		{"a shell that hands it on", []member{curl, shell}, map[int]failure{30: {5, 7}}, Cause{Processes: []int{20}, Status: 7}, true},
		{"a shell that does not", []member{curl, shell}, map[int]failure{30: {5, 7}}, Cause{Processes: []int{20}, Status: 3}, false},
		{"a program with a status of its own", []member{curl, git}, map[int]failure{30: {5, 7}}, Cause{Processes: []int{21}, Status: 128}, true},
		{"a child that succeeded", []member{curl, git}, nil, Cause{Processes: []int{21}, Status: 128}, false},
		{"a child that failed before", []member{curl, git}, map[int]failure{30: {3, 7}}, Cause{Processes: []int{21}, Status: 128}, false},
		{"a child of an interpreter", []member{curl, interpreter}, map[int]failure{30: {5, 7}}, Cause{Parent: 10, Status: 7}, true},
		{"a child with another status", []member{curl, interpreter}, map[int]failure{30: {5, 7}}, Cause{Parent: 10, Status: 1}, false},
		{"a grandchild", []member{curl, shell, interpreter}, map[int]failure{30: {5, 7}, 20: {6, 7}}, Cause{Parent: 10, Status: 7}, true},
		{"the interpreter itself", []member{interpreter}, nil, Cause{Parent: 10, Status: 1}, false},
		{"nobody", nil, nil, Cause{Processes: []int{30}, Status: 7}, false},
	} {
		m := met{at: 4, line: c.line}
		if got := m.decided(c.cause, c.failed); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

func TestParsesEvents(t *testing.T) {
	order := binary.LittleEndian
	event := func(kind, pid, group, status uint32) []byte {
		b := make([]byte, 36)
		b = order.AppendUint32(b, kind)
		b = order.AppendUint32(b, 0)
		b = order.AppendUint64(b, 77)
		for _, value := range []uint32{pid, group, status, 17, 1, 1} {
			b = order.AppendUint32(b, value)
		}
		return b
	}
	if pid, f, ok := parseEvent(event(anyExit, 9, 9, 0x500)); !ok || pid != 9 || f != (failure{77, 5}) {
		t.Error(pid, f, ok)
	}
	if _, f, ok := parseEvent(event(anyExit, 9, 9, 11)); !ok || f.status != 139 {
		t.Error(f, ok)
	}
	if _, _, ok := parseEvent(event(anyExit, 10, 9, 0x500)); ok {
		t.Error("a thread")
	}
	whole := event(anyExit, 9, 9, 0x500)
	for n := range whole[:64] {
		if _, _, ok := parseEvent(whole[:n]); ok {
			t.Error("cut short at", n)
		}
	}
}

func TestFindsTheHolder(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list := t.TempDir() + "/cgroup.procs"
	if err := os.WriteFile(list, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Connection{
		Local: uint16(conn.LocalAddr().(*net.TCPAddr).Port), Target: [4]byte{127, 0, 0, 1},
		Port: uint16(listener.Addr().(*net.TCPAddr).Port),
	}
	if pid := holder(list, c); pid != os.Getpid() {
		t.Error(pid)
	}
	if line := lineOf(os.Getpid()); len(line) == 0 || line[0].pid != os.Getpid() {
		t.Error(line)
	}
	c.Port++
	if pid := holder(list, c); pid != 0 {
		t.Error("nobody's", pid)
	}
}
