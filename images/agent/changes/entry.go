// Package changes reports which files have changed since the session began or
// since a mark.
//
// The root is an overlay: what users write goes to an upper directory, above an
// image that never changes. So only the upper directory has to be walked.
// Users' links are not followed, nothing of theirs is executed, and only
// regular files are opened.
package changes

import (
	"sort"

	"golang.org/x/sys/unix"
)

// entry is what is known about one file.
type entry struct {
	mode     uint32
	uid, gid uint32
	size     int64
	rdev     uint64
	inode    uint64
	links    uint32
	modified int64 // ns
	changed  int64 // ns; of the inode, which users cannot set
	born     int64 // ns; distinguishes a new file from an older one with the same inode number
	target   string
	opaque   bool // a directory that hides the one below it
	skipped  bool // a directory that was not walked; size is then the number of files below it
}

func (e *entry) kind() uint32      { return e.mode & unix.S_IFMT }
func (e *entry) isDirectory() bool { return e != nil && e.kind() == unix.S_IFDIR }
func (e *entry) isRegular() bool   { return e != nil && e.kind() == unix.S_IFREG }

// isWhiteout reports whether it is the overlay's mark for a deleted file of the
// image.
func (e *entry) isWhiteout() bool { return e.kind() == unix.S_IFCHR && e.rdev == 0 }

// same reports that a file cannot have changed in between.
func (e *entry) same(o *entry) bool {
	return e.inode == o.inode && e.changed == o.changed && e.born == o.born && e.size == o.size && e.mode == o.mode
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME

// look describes what has a name in a directory, or the directory itself when
// the name is empty; nil when there is nothing.
func look(directory int, name string) *entry {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if unix.Statx(directory, name, flags, statMask, &st) != nil {
		return nil
	}
	e := &entry{
		mode: uint32(st.Mode), uid: st.Uid, gid: st.Gid, size: int64(st.Size), inode: st.Ino, links: st.Nlink,
		rdev:     unix.Mkdev(st.Rdev_major, st.Rdev_minor),
		modified: nanoseconds(st.Mtime), changed: nanoseconds(st.Ctime), born: nanoseconds(st.Btime),
	}
	if e.kind() == unix.S_IFLNK {
		target := make([]byte, unix.PathMax)
		if n, err := unix.Readlinkat(directory, name, target); err == nil {
			e.target = string(target[:n])
		}
	}
	return e
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// isOpaque reports whether a directory of the upper layer hides the image's.
func isOpaque(directory int) bool {
	var value [1]byte
	n, err := unix.Fgetxattr(directory, "trusted.overlay.opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

const openDirectory = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// enter opens a directory in a directory; -1 when it is no directory any more.
func enter(directory int, name string) int {
	if directory < 0 {
		return -1
	}
	fd, err := unix.Openat(directory, name, openDirectory, 0)
	if err != nil {
		return -1
	}
	return fd
}

func leave(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// names lists a directory in order. If there are more names than most, it only
// counts them, and all is false.
func names(directory, most int) (found []string, count int, all bool) {
	if directory < 0 {
		return nil, 0, true
	}
	fd := enter(directory, ".") // with its own position
	if fd < 0 {
		return nil, 0, true
	}
	defer unix.Close(fd)
	all = true
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(fd, buffer)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		var some []string
		_, _, some = unix.ParseDirent(buffer[:n], -1, nil)
		if count += len(some); count > most {
			found, all = nil, false
			continue
		}
		found = append(found, some...)
	}
	sort.Strings(found)
	return found, count, all
}

// count is the number of files below a directory, down to a depth: each level
// takes a descriptor.
func count(directory, deeper int) int {
	found, total, _ := names(directory, maxNames)
	if deeper == 0 {
		return total
	}
	for _, name := range found {
		fd := enter(directory, name)
		if fd >= 0 {
			total += count(fd, deeper-1)
			leave(fd)
		}
	}
	return total
}

// openFile opens a regular file below a root; -1 when it is not one. It is safe
// against something else taking the file's place at that moment: opening
// neither waits nor has an effect.
func openFile(root int, path string) int {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(root, path, &how)
	if err != nil {
		return -1
	}
	if !look(fd, "").isRegular() {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}
