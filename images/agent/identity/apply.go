package identity

import (
	"fmt"
	"os"
	"regexp"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetClock sets the wall clock.
func SetClock(now time.Time) error {
	ts := unix.NsecToTimespec(now.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("setting the clock: %w", err)
	}
	return nil
}

// seed is struct rand_pool_info of linux/random.h with room for our entropy.
type seed struct {
	bits, size int32
	bytes      [64]byte
}

// AddEntropy credits fresh bytes to the kernel and makes its generator use
// them at once; until then a clone would repeat its template's numbers.
func AddEntropy(fresh []byte) error {
	var s seed
	n := copy(s.bytes[:], fresh)
	s.bits, s.size = int32(n*8), int32(n)
	fd, err := unix.Open("/dev/urandom", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the random device: %w", err)
	}
	defer unix.Close(fd)
	// The pointer must become a number within the call itself.
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return fmt.Errorf("adding entropy: %w", errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), rndReseedCRNG, 0); errno != 0 {
		return fmt.Errorf("reseeding: %w", errno)
	}
	return nil
}

// RNDRESEEDCRNG of linux/random.h; the same on amd64 and arm64.
const rndReseedCRNG = 0x5207

var (
	hostname  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)
	machineID = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// SetHostname names the machine.
func SetHostname(name string) error {
	if !hostname.MatchString(name) {
		return fmt.Errorf("%q cannot be a host name", name)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	return nil
}

// SetMachineID writes the machine's id to the file behind /etc/machine-id.
func SetMachineID(file, id string) error {
	if !machineID.MatchString(id) {
		return fmt.Errorf("%q cannot be a machine id", id)
	}
	if err := os.WriteFile(file, []byte(id+"\n"), 0o444); err != nil {
		return fmt.Errorf("writing the machine id: %w", err)
	}
	return nil
}
