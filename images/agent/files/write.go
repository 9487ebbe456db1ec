package files

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// temporary is the prefix of the names of files that are not complete yet.
const temporary = ".exec-sandbox-"

// maxLinks is how many links the kernel follows.
const maxLinks = 40

type writeResult struct {
	Bytes int64 `json:"bytes"`
}

// write replaces a file's content in one step, or changes nothing.
func write(r *Request, in *inbox) (any, error) {
	target, err := followLinks(string(r.Path))
	if err != nil {
		return nil, err
	}
	directory, name := path.Split(target)
	if name == "" || name == "." || name == ".." {
		return nil, unix.EISDIR
	}
	if r.CreateParents {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return nil, err
		}
	}
	base, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(base)
	var modified *time.Time
	if r.Modified != nil {
		then := time.UnixMilli(*r.Modified)
		modified = &then
	}
	n, err := replace(base, name, r.Mode, 0o644, modified, in, make([]byte, unit))
	if err != nil {
		return nil, err
	}
	return writeResult{n}, nil
}

// followLinks resolves a path whose last part is a link, so that the link stays
// and its target is replaced. The kernel resolves the other parts.
func followLinks(target string) (string, error) {
	for i := 0; i <= maxLinks; i++ {
		link, err := os.Readlink(target)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return target, nil
		}
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(link, "/") {
			target = link
		} else {
			directory, _ := path.Split(target)
			target = directory + link
		}
	}
	return "", unix.ELOOP
}

// replace writes a new file next to the old one and renames it to its place.
// The mode is the given one, else the old file's, else the fallback; the time
// is the given one, else now.
func replace(base int, name string, given *uint32, fallback uint32, modified *time.Time, content io.Reader, buffer []byte) (n int64, err error) {
	old, err := replaceable(base, name)
	if err != nil {
		return 0, err
	}
	mode := fallback
	if old != nil {
		mode = old.Mode
	}
	if given != nil {
		mode = *given
	}
	draft, fd, err := createTemporary(base)
	if err != nil {
		if old != nil && errors.Is(err, unix.ENOENT) {
			err = unix.EPERM // no files can be made in /proc and the like
		}
		return 0, full(err, base)
	}
	defer func() {
		_ = unix.Close(fd)
		if err != nil {
			_ = unix.Unlinkat(base, draft, 0)
		}
	}()
	if n, err = fill(fd, content, buffer); err != nil {
		return 0, full(err, fd)
	}
	if old != nil && (int(old.Uid) != unix.Geteuid() || int(old.Gid) != unix.Getegid()) {
		// Only root can do this; any other user becomes the owner.
		_ = unix.Fchown(fd, int(old.Uid), int(old.Gid))
	}
	if err = unix.Fchmod(fd, mode&0o7777); err != nil {
		return 0, err
	}
	if modified != nil {
		if err = setTime(fd, *modified); err != nil {
			return 0, err
		}
	}
	if err = unix.Renameat(base, draft, base, name); err != nil {
		return 0, full(err, base)
	}
	return n, nil
}

// replaceable describes the file that has the name now, nil when there is none.
// It is an error when the user may not write to it, or it is no regular file.
func replaceable(base int, name string) (*unix.Stat_t, error) {
	var old unix.Stat_t
	err := unix.Fstatat(base, name, &old, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if old.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil, unix.ELOOP // a link was made after the links were followed
	}
	if err := regular(old.Mode); err != nil {
		return nil, err
	}
	// Replacing a file needs only permission for its directory; require the
	// file's as well.
	fd, err := unix.Openat(base, name, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ETXTBSY) {
		return &old, nil
	}
	if err != nil {
		return nil, err
	}
	return &old, unix.Close(fd)
}

func createTemporary(base int) (name string, fd int, err error) {
	for {
		var random [8]byte
		if _, err := rand.Read(random[:]); err != nil {
			return "", -1, err
		}
		name = temporary + hex.EncodeToString(random[:])
		fd, err = unix.Openat(base, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EINTR) {
			return name, fd, err
		}
	}
}

// fill writes all of a content, by way of the buffer.
func fill(fd int, content io.Reader, buffer []byte) (written int64, err error) {
	for {
		n, err := content.Read(buffer)
		for p := buffer[:n]; len(p) > 0; {
			put, err := unix.Write(fd, p)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return written, err
			}
			if put > 0 {
				p = p[put:]
				written += int64(put)
			}
		}
		if err == io.EOF {
			return written, nil
		}
		if err != nil {
			return written, err
		}
	}
}
