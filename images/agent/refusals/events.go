package refusals

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// The kernel's process events (linux/cn_proc.h).
const (
	connectorProcesses = 1 // CN_IDX_PROC, CN_VAL_PROC
	listenToEvents     = 1 // PROC_CN_MCAST_LISTEN
	failedExit         = 0x20000000
	anyExit            = 0x80000000
	connectorHeader    = 20
	eventHeader        = 16
	// buffer has room for a few thousand events, which are read when they are
	// needed.
	buffer = 4 << 20
)

// events is a socket on which the kernel reports every process that fails.
type events struct{ fd int }

func (e *events) listen() bool {
	if e.fd >= 0 {
		return true
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_CONNECTOR)
	if err != nil {
		return false
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorProcesses})
	if err == nil {
		err = unix.Sendto(fd, subscription(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		_ = unix.Close(fd)
		return false
	}
	e.fd = fd
	return true
}

func subscription() []byte {
	order := binary.LittleEndian
	b := order.AppendUint32(nil, unix.SizeofNlMsghdr+connectorHeader+8)
	b = order.AppendUint16(b, unix.NLMSG_DONE)
	b = append(b, make([]byte, 10)...) // flags, sequence, port
	b = order.AppendUint32(b, connectorProcesses)
	b = order.AppendUint32(b, connectorProcesses)
	b = append(b, make([]byte, 8)...) // sequence, acknowledgement
	b = order.AppendUint16(b, 8)
	b = order.AppendUint16(b, 0)
	b = order.AppendUint32(b, listenToEvents)
	return order.AppendUint32(b, failedExit)
}

// take calls found for every process that has failed since the last call.
func (e *events) take(found func(pid int, f failure)) {
	if e.fd < 0 {
		return
	}
	var b [4096]byte
	for {
		n, from, err := unix.Recvfrom(e.fd, b[:], 0)
		if err == unix.EINTR || err == unix.ENOBUFS { // the latter: some were lost
			continue
		}
		if err != nil {
			return
		}
		sender, ok := from.(*unix.SockaddrNetlink)
		if !ok || sender.Pid != 0 { // not the kernel
			continue
		}
		if pid, f, ok := parseEvent(b[:n]); ok {
			found(pid, f)
		}
	}
}

// parseEvent reads one message; the end of a thread is not that of a process.
func parseEvent(b []byte) (int, failure, bool) {
	const head = unix.SizeofNlMsghdr + connectorHeader
	if len(b) < head+eventHeader+12 {
		return 0, failure{}, false
	}
	order := binary.LittleEndian
	event, data := b[head:], b[head+eventHeader:]
	pid, group := order.Uint32(data), order.Uint32(data[4:])
	if order.Uint32(event) != anyExit || pid != group {
		return 0, failure{}, false
	}
	return int(pid), failure{order.Uint64(event[8:]), code(syscall.WaitStatus(order.Uint32(data[8:])))}, true
}

// code is a status as a shell reports it.
func code(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

func now() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(t.Nano())
}
