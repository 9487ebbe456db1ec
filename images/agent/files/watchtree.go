package files

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxWatched is how many directories one watch has. The kernel limits all
	// of a user's watches together.
	maxWatched = 4096
	// maxScanned is how many scanned names are remembered.
	maxScanned = 100000
	// tooMany is the code for a tree of more directories than can be watched.
	tooMany = "TOOMANY"
)

// watched is what one watch of the kernel is on: a directory, or the one file.
type watched struct {
	parent *watched
	name   string // of the root: its whole path
	number int32
	below  map[string]*watched
	// scanned are the names reported by a scan of the directory, which the
	// kernel may report as well.
	scanned map[string]bool
}

func (d *watched) path(name string) Name {
	at := d.name
	if d.parent != nil {
		at = string(d.parent.path(d.name))
	}
	if name == "" {
		return Name(at)
	}
	return Name(path.Join(at, name))
}

// tree is everything that one watch is on. Links are not followed, except at
// its root.
type tree struct {
	fd        int
	recursive bool
	most      int // directories
	root      *watched
	numbers   map[int32]*watched
	fresh     int // names in scanned
}

func newTree(root string, fd int, recursive bool) *tree {
	return &tree{
		fd: fd, recursive: recursive, most: maxWatched, root: &watched{name: root, below: map[string]*watched{}}, numbers: map[int32]*watched{},
	}
}

// reporter is called with what is found.
type reporter func(kind string, at *watched, name string)

// begin watches the root and everything below.
func (t *tree) begin() error {
	number, err := unix.InotifyAddWatch(t.fd, t.root.name, watchedEvents)
	if err != nil {
		return err
	}
	t.root.number = int32(number)
	t.numbers[t.root.number] = t.root
	if t.recursive && !t.look(t.root, nil) {
		return &Failure{Code: tooMany}
	}
	return nil
}

// enter watches a directory and everything below. It adds the watch before the
// scan, so that nothing made during the scan is missed. It returns false when
// there are too many directories.
func (t *tree) enter(parent *watched, name string, report reporter) bool {
	if !t.recursive {
		return true
	}
	number, err := unix.InotifyAddWatch(t.fd, string(parent.path(name)), watchedEvents|unix.IN_DONT_FOLLOW|unix.IN_ONLYDIR)
	if err != nil {
		if err == unix.ENOSPC {
			return t.full(report)
		}
		return true // it was removed, or the user may not read it
	}
	if known := t.numbers[int32(number)]; known != nil {
		t.move(known, parent, name)
		return true
	}
	if len(t.numbers) >= t.most {
		_, _ = unix.InotifyRmWatch(t.fd, uint32(number))
		return t.full(report)
	}
	d := &watched{parent: parent, name: name, number: int32(number), below: map[string]*watched{}}
	t.numbers[d.number] = d
	parent.below[name] = d
	return t.look(d, report)
}

// full reports that changes will be missing from now on.
func (t *tree) full(report reporter) bool {
	if report != nil {
		report("overflow", t.root, "")
	}
	return false
}

// look scans a directory: it reports what is in it, and watches what is below.
func (t *tree) look(d *watched, report reporter) bool {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	if d != t.root {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(string(d.path("")), flags, 0)
	if err != nil {
		return true
	}
	file := os.NewFile(uintptr(fd), d.name)
	var inner []string
	for {
		entries, err := file.ReadDir(1000)
		for _, entry := range entries {
			name := entry.Name()
			if entry.IsDir() {
				inner = append(inner, name)
			}
			if report == nil || strings.HasPrefix(name, temporary) {
				continue
			}
			report("create", d, name)
			if t.fresh < maxScanned {
				if d.scanned == nil {
					d.scanned = map[string]bool{}
				}
				d.scanned[name] = true
				t.fresh++
			}
		}
		if err != nil {
			break
		}
	}
	_ = file.Close()
	all := true
	for _, name := range inner {
		all = t.enter(d, name, report) && all
		if !all && report == nil {
			break
		}
	}
	return all
}

// move moves a directory to its new place.
func (t *tree) move(d, parent *watched, name string) {
	if d == nil || d.parent == nil {
		return
	}
	for up := parent; up != nil; up = up.parent {
		if up == d {
			return // the event is out of date: a directory cannot be inside itself
		}
	}
	t.unlink(d)
	d.parent, d.name = parent, name
	parent.below[name] = d
}

func (t *tree) unlink(d *watched) {
	if d.parent != nil && d.parent.below[d.name] == d {
		delete(d.parent.below, d.name)
	}
}

// forget drops a directory whose watch the kernel has dropped.
func (t *tree) forget(d *watched) {
	t.unlink(d)
	delete(t.numbers, d.number)
}

// leave stops watching a directory that was moved away, and everything below.
func (t *tree) leave(d *watched) {
	if d == nil {
		return
	}
	for _, inner := range d.below {
		t.leave(inner)
	}
	_, _ = unix.InotifyRmWatch(t.fd, uint32(d.number))
	t.forget(d)
}

// again scans the tree again after changes were lost.
func (t *tree) again() {
	if !t.recursive {
		return
	}
	for _, d := range t.root.below {
		t.leave(d)
	}
	t.look(t.root, nil)
}

// rest is called before waiting. When the kernel has no more events, none can
// repeat a scanned name: these are forgotten.
func (t *tree) rest() {
	if t.fresh == 0 {
		return
	}
	if waiting, err := unix.IoctlGetInt(t.fd, unix.TIOCINQ); err != nil || waiting > 0 {
		return
	}
	for _, d := range t.numbers {
		d.scanned = nil
	}
	t.fresh = 0
}
