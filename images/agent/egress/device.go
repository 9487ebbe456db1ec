package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	deviceName = "tun0"
	// mtu is as large as it can be: each packet costs the agent two system
	// calls, and none is ever sent over a wire.
	mtu = 65535
	// table and priority belong to the rule that sends TCP to the device:
	// everything else fails at once with ENETUNREACH.
	table    = 100
	priority = 1000
)

// openDevice makes the network device whose packets this process reads, and the
// route to it.
func openDevice() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the tunnel: %w", err)
	}
	if err := setUp(fd); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), deviceName), nil
}

func setUp(fd int) error {
	request, err := unix.NewIfreq(deviceName)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("making %s: %w", deviceName, err)
	}
	// With an IPv6 address on it, programs would try IPv6 first.
	off := "/proc/sys/net/ipv6/conf/" + deviceName + "/disable_ipv6"
	if err := os.WriteFile(off, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("turning IPv6 off: %w", err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("configuring %s: %w", deviceName, err)
	}
	defer unix.Close(socket)
	var address [4]byte
	binary.BigEndian.PutUint32(address[:], guestAddress)
	steps := []struct {
		what  string
		code  uint
		apply func(*unix.Ifreq) error
	}{
		{"address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address[:]) }},
		{"netmask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 255, 255}) }},
		{"mtu", unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(mtu); return nil }},
		{"flags", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	}
	for _, step := range steps {
		r, err := unix.NewIfreq(deviceName)
		if err == nil {
			err = step.apply(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(socket, step.code, r)
		}
		if err != nil {
			return fmt.Errorf("setting the %s of %s: %w", step.what, deviceName, err)
		}
	}
	index, err := unix.NewIfreq(deviceName)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFINDEX, index); err != nil {
		return fmt.Errorf("finding %s: %w", deviceName, err)
	}
	return route(index.Uint32())
}

// route sends TCP to the device.
func route(device uint32) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening netlink: %w", err)
	}
	defer unix.Close(socket)
	way := unix.RtMsg{
		Family: unix.AF_INET, Table: table, Protocol: unix.RTPROT_STATIC,
		Scope: unix.RT_SCOPE_LINK, Type: unix.RTN_UNICAST,
	}
	var source [4]byte
	binary.BigEndian.PutUint32(source[:], guestAddress)
	body := append([]byte{}, (*[unix.SizeofRtMsg]byte)(unsafe.Pointer(&way))[:]...)
	body = attribute(body, unix.RTA_OIF, native(device))
	body = attribute(body, unix.RTA_PREFSRC, source[:])
	if err := netlink(socket, unix.RTM_NEWROUTE, body); err != nil {
		return fmt.Errorf("adding the route: %w", err)
	}
	// A rule's header is laid out as a route's.
	rule := unix.RtMsg{Family: unix.AF_INET, Table: table, Type: unix.FR_ACT_TO_TBL}
	body = append([]byte{}, (*[unix.SizeofRtMsg]byte)(unsafe.Pointer(&rule))[:]...)
	body = attribute(body, unix.FRA_PRIORITY, native(priority))
	body = attribute(body, unix.FRA_IP_PROTO, []byte{unix.IPPROTO_TCP})
	if err := netlink(socket, unix.RTM_NEWRULE, body); err != nil {
		return fmt.Errorf("adding the rule: %w", err)
	}
	return nil
}

// native encodes a number in the machine's byte order; both architectures are
// little-endian.
func native(value uint32) []byte { return binary.LittleEndian.AppendUint32(nil, value) }

func attribute(out []byte, kind uint16, value []byte) []byte {
	out = binary.LittleEndian.AppendUint16(out, uint16(4+len(value)))
	out = binary.LittleEndian.AppendUint16(out, kind)
	out = append(out, value...)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out
}

// netlink sends one request and waits for its acknowledgement.
func netlink(socket int, kind uint16, body []byte) error {
	flags := uint16(unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE)
	message := native(uint32(unix.SizeofNlMsghdr + len(body)))
	message = binary.LittleEndian.AppendUint16(message, kind)
	message = binary.LittleEndian.AppendUint16(message, flags)
	message = append(message, make([]byte, 8)...)
	message = append(message, body...)
	if err := unix.Sendto(socket, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var reply [4096]byte
	n, _, err := unix.Recvfrom(socket, reply[:], 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("a reply of %d bytes", n)
	}
	if code := int32(binary.LittleEndian.Uint32(reply[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
