// Package disk measures and limits the space on the file system that users write to.
package disk

import (
	"fmt"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

// Disk is the file system that everything users write goes to.
type Disk struct {
	// Root is its own top directory, open. Users see only a part of what is
	// below, and never the rest. -1: there is none.
	Root int

	allowed  atomic.Int64 // bytes that users may have on it; 0 = all there are
	reserved bool         // there is a file that holds the rest
}

// filler takes what users may not have.
const filler = "reserved"

// Reserve leaves so many bytes to users; 0 is all there are. The rest is held
// by a file of ours, so that the kernel itself says when the disk is full, and
// everything that asks for the space left gets a true answer.
func (d *Disk) Reserve(bytes int64) error {
	if d == nil || d.Root < 0 {
		return nil
	}
	if bytes == 0 && !d.reserved {
		return nil
	}
	if err := unix.Unlinkat(d.Root, filler, 0); err != nil && err != unix.ENOENT {
		return fmt.Errorf("giving reserved space back: %w", err)
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

// full is less than any write needs.
const full = 64 << 10

// Space says how many bytes users may have and how many they have.
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

// SpaceFor is Space of the file system that a task could not write to: the
// one of the path, or one that is full. Not ok: nobody can say.
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

// Share is how many bytes we may use for our own purposes: not much, and
// nothing of what users may soon need.
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
