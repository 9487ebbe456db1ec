// Package quick makes system calls that never block, without telling the Go
// scheduler about them.
//
// An ordinary system call in Go announces that it may block. That wakes the
// runtime's monitor, which then checks every 20 µs whether a thread must be
// replaced: with one emulated processor that was seventy context switches for
// one short execution, and each empties the emulator's caches. Only calls on
// non-blocking pipes and ports, and on files in memory, belong here.
package quick

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read reads once, again when interrupted by a signal.
func Read(fd int, p []byte) (int, error) { return transfer(unix.SYS_READ, fd, p) }

// Write writes once, again when interrupted by a signal.
func Write(fd int, p []byte) (int, error) { return transfer(unix.SYS_WRITE, fd, p) }

// WriteAll writes to a file that is not a pipe.
func WriteAll(fd int, payload []byte) error {
	for len(payload) > 0 {
		n, err := Write(fd, payload)
		if err != nil {
			return err
		}
		payload = payload[n:]
	}
	return nil
}

func transfer(call uintptr, fd int, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// ReadStart reads from the start of a file.
func ReadStart(fd int, p []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
	return result(n, errno)
}

// WriteStart writes to the start of a file.
func WriteStart(fd int, p []byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
	return failure(errno)
}

// Open opens a file in a directory; children do not inherit it.
func Open(directory int, name string, flags int, mode uint32) (int, error) {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return -1, err
	}
	fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(directory), uintptr(unsafe.Pointer(path)),
		uintptr(flags|unix.O_CLOEXEC), uintptr(mode), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// Close closes a descriptor.
func Close(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

// MakeDirectory makes a directory in another.
func MakeDirectory(directory int, name string, mode uint32) error {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall(unix.SYS_MKDIRAT, uintptr(directory), uintptr(unsafe.Pointer(path)), uintptr(mode))
	return failure(errno)
}

// MakeFIFO makes a FIFO in a directory.
func MakeFIFO(directory int, name string, mode uint32) error {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_MKNODAT, uintptr(directory), uintptr(unsafe.Pointer(path)),
		uintptr(mode|unix.S_IFIFO), 0, 0, 0)
	return failure(errno)
}

// Chown changes the owner of a name in a directory, or of the directory itself
// when the name is empty.
func Chown(directory int, name string, uid, gid int) error {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_FCHOWNAT, uintptr(directory), uintptr(unsafe.Pointer(path)),
		uintptr(uid), uintptr(gid), unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH, 0)
	return failure(errno)
}

// Remove removes a name from a directory; flags may be AT_REMOVEDIR.
func Remove(directory int, name string, flags int) error {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall(unix.SYS_UNLINKAT, uintptr(directory), uintptr(unsafe.Pointer(path)), uintptr(flags))
	return failure(errno)
}

// FileSystem describes the file system of an open file.
func FileSystem(fd int, st *unix.Statfs_t) error {
	_, _, errno := unix.RawSyscall(unix.SYS_FSTATFS, uintptr(fd), uintptr(unsafe.Pointer(st)), 0)
	return failure(errno)
}

// Widen makes a pipe large enough for what its writer can write until the next
// look, if the system allows it.
func Widen(fd int) {
	const room = 256 << 10
	_, _, _ = unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETPIPE_SZ, room)
}

// Pending is how many bytes a pipe holds.
func Pending(fd int) int {
	var n int32
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCINQ, uintptr(unsafe.Pointer(&n)))
	if errno != 0 {
		return 0
	}
	return int(n)
}

// HungUp reports whether a pipe's last writer is gone.
func HungUp(fd int) bool {
	poll := unix.PollFd{Fd: int32(fd)}
	var now unix.Timespec
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return errno == 0 && poll.Revents&unix.POLLHUP != 0
}

// BootClock is the time since the machine started, in nanoseconds.
func BootClock() int64 {
	var now unix.Timespec
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		return 0
	}
	return now.Nano()
}

func result(n uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func failure(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
