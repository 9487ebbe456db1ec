// Package disk measures and limits the space on the file system that users write to.
package disk

import (
	"fmt"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

// Disk is the file system to which everything goes that users write.
type Disk struct {
	// Root is a descriptor of its top directory, of which users see only a
	// part. -1: there is none.
	Root int

	allowed  atomic.Int64 // bytes that users may use; 0 = all
	reserved bool         // a file takes the rest
}

// filler is the file that takes what users may not use.
const filler = "reserved"

// Reserve limits how many bytes users may use; 0 is all. A file of the agent's
// takes the rest, so that the kernel itself reports when the disk is full, and
// every program that asks for the free space gets a true answer.
func (d *Disk) Reserve(bytes int64) error {
	if d == nil || d.Root < 0 {
		return nil
	}
	if bytes == 0 && !d.reserved {
		return nil
	}
	if err := unix.Unlinkat(d.Root, filler, 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("freeing reserved space: %w", err)
	}
	d.reserved = false
	d.allowed.Store(0)
	var st unix.Statfs_t
	if err := unix.Fstatfs(d.Root, &st); err != nil {
		return fmt.Errorf("reading the disk's size: %w", err)
	}
	excess := int64(st.Bavail)*st.Bsize - bytes
	if bytes == 0 || excess <= 0 {
		return nil
	}
	fd, err := unix.Openat(d.Root, filler, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("reserving space: %w", err)
	}
	d.reserved = true
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, 0, 0, excess); err != nil {
		return fmt.Errorf("reserving %d bytes: %w", excess, err)
	}
	d.allowed.Store(bytes)
	return nil
}

// full is the free space, in bytes, below which the disk counts as full.
const full = 64 << 10

// Space returns how many bytes users may use and how many they use.
func (d *Disk) Space() (allowed, used int64, ok bool) {
	var st unix.Statfs_t
	if d == nil || d.Root < 0 || quick.FileSystem(d.Root, &st) != nil {
		return 0, 0, false
	}
	if allowed = d.allowed.Load(); allowed == 0 {
		allowed = int64(st.Blocks) * st.Bsize
	}
	if used = allowed - int64(st.Bavail)*st.Bsize; used < 0 {
		used = 0
	}
	return allowed, used, true
}

// others are the file systems in memory that users may write to.
var others = []string{"/dev/shm", "/run"}

// SpaceFor is Space of the file system that a task could not write to: the one
// of the path, or else one that is full. It is not ok when there is none.
func (d *Disk) SpaceFor(path *string) (allowed, used int64, ok bool) {
	var st unix.Statfs_t
	if path != nil && filepath.IsAbs(*path) &&
		(unix.Statfs(*path, &st) == nil || unix.Statfs(filepath.Dir(*path), &st) == nil) {
		if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
			return d.Space()
		}
		return sizes(&st)
	}
	if d.IsFull() {
		return d.Space()
	}
	for _, other := range others {
		if unix.Statfs(other, &st) == nil && int64(st.Bavail)*st.Bsize < full {
			return sizes(&st)
		}
	}
	return 0, 0, false
}

func sizes(st *unix.Statfs_t) (allowed, used int64, ok bool) {
	allowed = int64(st.Blocks) * st.Bsize
	return allowed, allowed - int64(st.Bavail)*st.Bsize, true
}

// Share is how many bytes the agent may use itself: a small part, and none when
// the disk is nearly full.
func (d *Disk) Share() int64 {
	allowed, used, ok := d.Space()
	if !ok || allowed-used < allowed/8 {
		return 0
	}
	return allowed / 16
}

// IsFull reports whether nothing more can be written.
func (d *Disk) IsFull() bool {
	allowed, used, ok := d.Space()
	return ok && allowed-used < full
}
