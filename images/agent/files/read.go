package files

import (
	"errors"

	"golang.org/x/sys/unix"
)

// unit is how many bytes are moved at a time.
const unit = 128 * 1024

type readResult struct {
	Size  int64 `json:"size"`  // when it was opened; of a made-up file, what was read
	Bytes int64 `json:"bytes"` // sent
}

// read sends a file's content as it was when it was opened: a file that grows
// is read up to the size it had.
func read(r *Request, in *inbox) (any, error) {
	fd, st, err := openRegular(string(r.Path))
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	left := st.Size - r.Offset
	pseudo := madeUp(fd)
	if pseudo {
		left = 1<<63 - 1
	}
	if r.Length != nil && *r.Length < left {
		left = *r.Length
	}
	if r.Offset > 0 {
		if _, err := unix.Seek(fd, r.Offset, 0); err != nil {
			return nil, err
		}
	}
	sent, err := transfer(fd, left, in)
	if err != nil {
		return nil, err
	}
	size := st.Size
	if pseudo {
		size = r.Offset + sent
	}
	return readResult{size, sent}, nil
}

// openRegular opens a regular file. A FIFO or device is not opened, except when
// it takes a file's place at that moment; even then opening it does not wait.
func openRegular(path string) (fd int, st unix.Stat_t, err error) {
	if err := unix.Stat(path, &st); err != nil {
		return -1, st, err
	}
	if err := regular(st.Mode); err != nil {
		return -1, st, err
	}
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err == nil {
		err = regular(st.Mode)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// transfer sends up to limit bytes of an open file.
func transfer(fd int, limit int64, in *inbox) (sent int64, err error) {
	buffer := make([]byte, unit)
	for sent < limit {
		p := buffer
		if limit-sent < unit {
			p = buffer[:limit-sent]
		}
		n, err := unix.Read(fd, p)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN): // nothing to read now, for example from the kernel's log
			return sent, nil
		case err != nil:
			return sent, err
		case n == 0:
			return sent, nil
		}
		if _, err := (outbox{in.stream}).Write(p[:n]); err != nil {
			return sent, err
		}
		sent += int64(n)
	}
	return sent, nil
}

// madeUp reports whether a file's size means nothing because the kernel makes
// up its content while it is read.
func madeUp(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC:
		return true
	}
	return false
}
