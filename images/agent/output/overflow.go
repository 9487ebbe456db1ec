package output

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/quick"
)

// maxHeld is how many bytes of an output are kept in memory before a file is made.
const maxHeld = 1 << 20

// Directory is the directory for the part of long outputs that the host does
// not keep.
type Directory struct {
	disk *disk.Disk
	path string
	fd   int
}

// OpenDirectory makes the directory, on the disk. The user may remove its
// files.
func OpenDirectory(path string, uid, gid int, on *disk.Disk) (*Directory, error) {
	// Users may enter a path below its parent, but not list the parent.
	err := os.MkdirAll(filepath.Dir(path), 0o711)
	if err == nil {
		err = os.MkdirAll(path, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", path, err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	if err := unix.Fchown(fd, uid, gid); err != nil {
		return nil, fmt.Errorf("changing the owner of %s: %w", path, err)
	}
	return &Directory{disk: on, path: path, fd: fd}, nil
}

// Overflow keeps in a file what the host does not keep of an output: the host
// keeps half its limit from the beginning and half from the end, so the file
// has everything from the middle of the limit on. There is no file if the
// output is within its limit.
type Overflow struct {
	to   *Directory
	name string

	limit, head int64 // the host keeps limit bytes, head of them from the beginning
	total       int64
	held        []byte
	fd          int
	checked     int64 // total when the disk's space was last checked
	over        bool  // nothing is kept any more
}

// Overflow is for one output of the stream with that number. It keeps nothing
// if the host did not ask for it, or if there is no directory.
func (d *Directory) Overflow(id uint32, name string, limit *int64, keep bool) *Overflow {
	o := &Overflow{to: d, fd: -1}
	if d == nil || limit == nil || !keep {
		o.over = true
		return o
	}
	o.name = strconv.FormatUint(uint64(id), 10) + "." + name
	o.limit = *limit
	o.head = (o.limit + 1) / 2
	return o
}

// Write adds the next bytes of the output.
func (o *Overflow) Write(payload []byte) {
	if o.over {
		return
	}
	start := o.total
	o.total += int64(len(payload))
	if o.total <= o.head {
		return
	}
	if start < o.head {
		payload = payload[o.head-start:]
	}
	if o.fd < 0 {
		o.held = append(o.held, payload...)
		if o.total <= o.limit && len(o.held) < maxHeld {
			return
		}
		payload, o.held = o.held, nil
		const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
		_ = quick.Remove(o.to.fd, o.name, 0)
		var err error
		if o.fd, err = quick.Open(o.to.fd, o.name, flags, 0o644); err != nil {
			o.fd = -1
			o.giveUp()
			return
		}
	}
	if err := quick.WriteAll(o.fd, payload); err != nil || o.diskNearlyFull() {
		o.giveUp()
	}
}

// diskNearlyFull reports that the rest of the disk is left to users.
func (o *Overflow) diskNearlyFull() bool {
	if o.total-o.checked < maxHeld {
		return false
	}
	o.checked = o.total
	allowed, used, ok := o.to.disk.Space()
	return ok && allowed-used < allowed/8
}

func (o *Overflow) giveUp() {
	o.over, o.held = true, nil
	if o.fd >= 0 {
		quick.Close(o.fd)
		o.fd = -1
		_ = quick.Remove(o.to.fd, o.name, 0)
	}
}

// End ends the output and returns the file's path; nil when there is no file.
func (o *Overflow) End() *string {
	if o == nil || o.over {
		return nil
	}
	if o.total <= o.limit || o.fd < 0 {
		o.giveUp()
		return nil
	}
	o.over = true
	quick.Close(o.fd)
	path := o.to.path + "/" + o.name
	return &path
}
