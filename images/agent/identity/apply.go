package identity

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

// SetClock sets the wall clock.
func SetClock(now time.Time) error {
	ts := unix.NsecToTimespec(now.UnixNano())
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return fmt.Errorf("setting the clock: %w", errno)
	}
	return nil
}

// seed is struct rand_pool_info of linux/random.h with room for our entropy.
type seed struct {
	bits, size int32
	bytes      [64]byte
}

// AddEntropy adds fresh entropy to the kernel and makes its generator use it at
// once; until then a clone repeats its template's random numbers.
func AddEntropy(fresh []byte) error {
	var s seed
	n := copy(s.bytes[:], fresh)
	s.bits, s.size = int32(n*8), int32(n)
	fd, err := quick.Open(unix.AT_FDCWD, "/dev/urandom", unix.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("opening the random device: %w", err)
	}
	defer quick.Close(fd)
	// The pointer must be converted within the call itself.
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return fmt.Errorf("adding entropy: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), rndReseedCRNG, 0); errno != 0 {
		return fmt.Errorf("reseeding: %w", errno)
	}
	return nil
}

// RNDRESEEDCRNG of linux/random.h; the same on amd64 and arm64.
const rndReseedCRNG = 0x5207

// isHostname accepts letters and digits, and hyphens between them. (A regular
// expression would be most of the code that a clone's greeting runs.)
func isHostname(name string) bool {
	if len(name) == 0 || len(name) > 63 || name[0] == '-' || name[len(name)-1] == '-' {
		return false
	}
	for _, b := range []byte(name) {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '-':
		default:
			return false
		}
	}
	return true
}

// isMachineID accepts 32 digits of lower-case hex.
func isMachineID(id string) bool {
	for _, b := range []byte(id) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	return len(id) == 32
}

// SetHostname sets the machine's name, and writes a file (see boot.Hosts) in
// which programs find its address: the loopback, under every network policy.
func SetHostname(file, name string) error {
	if !isHostname(name) {
		return fmt.Errorf("%q cannot be a host name", name)
	}
	hosts := "127.0.0.1\tlocalhost " + name + "\n::1\tlocalhost ip6-localhost\n"
	if err := rewrite(file, hosts, 0o644); err != nil {
		return err
	}
	text := []byte(name)
	_, _, errno := unix.RawSyscall(unix.SYS_SETHOSTNAME, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), 0)
	if errno != 0 {
		return fmt.Errorf("setting the host name: %w", errno)
	}
	return nil
}

// SetMachineID writes the machine's id to a file, see boot.MachineID.
func SetMachineID(file, id string) error {
	if !isMachineID(id) {
		return fmt.Errorf("%q cannot be a machine id", id)
	}
	return rewrite(file, id+"\n", 0o444)
}

// rewrite replaces the content of a small file that is mounted elsewhere too.
func rewrite(file, content string, mode uint32) error {
	fd, err := quick.Open(unix.AT_FDCWD, file, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, mode)
	if err != nil {
		return fmt.Errorf("opening %s: %w", file, err)
	}
	defer quick.Close(fd)
	if _, err := quick.Write(fd, []byte(content)); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}
