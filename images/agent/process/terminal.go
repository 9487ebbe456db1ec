package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ttyGroup is Debian's group of terminals.
const ttyGroup = 5

// openTerminal makes a terminal that the user owns: the agent's end, which is
// non-blocking, and the program's.
func openTerminal(uid int, s size) (master, slave int, err error) {
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("making a terminal: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(master)
		}
	}()
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, -1, fmt.Errorf("unlocking the terminal: %w", err)
	}
	if err := resize(master, s); err != nil {
		return -1, -1, err
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno != 0 {
		return -1, -1, fmt.Errorf("opening the terminal: %w", errno)
	}
	slave = int(fd)
	if err := unix.Fchown(slave, uid, ttyGroup); err != nil {
		_ = unix.Close(slave)
		return -1, -1, fmt.Errorf("changing the owner of the terminal: %w", err)
	}
	return master, slave, nil
}

func resize(master int, s size) error {
	err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(s.Rows), Col: uint16(s.Cols)})
	if err != nil {
		return fmt.Errorf("sizing the terminal: %w", err)
	}
	return nil
}

// endOfFile is what a user would type to end the input, given what was typed
// last: in the middle of a line it takes two keys.
func endOfFile(master int, last byte) []byte {
	state, err := unix.IoctlGetTermios(master, unix.TCGETS)
	if err != nil {
		return nil
	}
	key := state.Cc[unix.VEOF]
	if state.Lflag&unix.ICANON != 0 && last != '\n' && last != '\r' && last != key {
		return []byte{key, key}
	}
	return []byte{key}
}
