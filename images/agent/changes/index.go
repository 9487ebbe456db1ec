package changes

import (
	"encoding/binary"
	"path"

	"golang.org/x/sys/unix"
)

const (
	// maxNames is how many names a directory may have to be walked.
	maxNames = 20000
	// maxDepth is how deep a walk goes; each level takes two descriptors.
	maxDepth = 100
	// maxCounted is how much deeper files are counted.
	maxCounted = 500
	// maxIndex is the largest index in bytes: about 50,000 files.
	maxIndex = 4 << 20
)

// index is the state of the upper directory at one moment: its entries in the
// order of a walk that visits a directory before its content, and names in byte
// order.
type index struct {
	data []byte
	cut  bool  // the rest of the walk did not fit
	last int64 // time of the latest change, ns
}

// record is an entry at its place in the walk.
type record struct {
	entry
	depth int
	name  string
}

func (x *index) add(depth int, name string, e *entry) {
	b := binary.AppendUvarint(x.data, uint64(depth))
	b = appendText(b, name)
	flags := byte(0)
	if e.opaque {
		flags |= 1
	}
	if e.skipped {
		flags |= 2
	}
	b = append(b, flags)
	for _, n := range [...]uint64{
		uint64(e.mode), uint64(e.uid), uint64(e.gid), uint64(e.size), e.rdev, e.inode, uint64(e.links),
		uint64(e.modified), uint64(e.changed), uint64(e.born),
	} {
		b = binary.AppendUvarint(b, n)
	}
	x.data = appendText(b, e.target)
	if e.changed > x.last {
		x.last = e.changed
	}
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// cursor goes through an index once.
type cursor struct {
	rest []byte
	cut  bool
	now  record
	ok   bool // there is a record
}

func (x *index) cursor() *cursor {
	c := &cursor{rest: x.data, cut: x.cut}
	c.next()
	return c
}

func (c *cursor) number() uint64 {
	n, length := binary.Uvarint(c.rest)
	c.rest = c.rest[length:]
	return n
}

func (c *cursor) text() string {
	n := c.number()
	text := string(c.rest[:n])
	c.rest = c.rest[n:]
	return text
}

func (c *cursor) next() {
	if c.ok = len(c.rest) > 0; !c.ok {
		return
	}
	r := record{depth: int(c.number()), name: c.text()}
	r.opaque, r.skipped = c.rest[0]&1 != 0, c.rest[0]&2 != 0
	c.rest = c.rest[1:]
	r.mode, r.uid, r.gid = uint32(c.number()), uint32(c.number()), uint32(c.number())
	r.size, r.rdev, r.inode, r.links = int64(c.number()), c.number(), c.number(), uint32(c.number())
	r.modified, r.changed, r.born = int64(c.number()), int64(c.number()), int64(c.number())
	r.target = c.text()
	c.now = r
}

// at reports whether the next record belongs to a directory whose entries have
// that depth.
func (c *cursor) at(depth int) bool { return c.ok && c.now.depth == depth }

// skip passes over everything deeper.
func (c *cursor) skip(depth int) {
	for c.ok && c.now.depth > depth {
		c.next()
	}
}

// beyond reports that the index was cut before this place.
func (c *cursor) beyond() bool { return c.cut && !c.ok }

// walk makes an index.
type walk struct {
	index index
	most  int                         // bytes of the index
	seen  func(path string, e *entry) // called for each regular file
}

// directory adds a directory's content; false when there is no more room.
func (w *walk) directory(fd int, at string, depth int) bool {
	found, _, _ := names(fd, maxNames) // if there are too many, the parent's record says so
	for _, name := range found {
		e := look(fd, name)
		where := path.Join(at, name)
		if e == nil || isOurs(where, e) {
			continue
		}
		if len(w.index.data) > w.most {
			w.index.cut = true
			return false
		}
		inner := -1
		if e.isDirectory() {
			if inner = enter(fd, name); inner < 0 {
				continue
			}
			e.opaque = isOpaque(inner)
			if e.skipped = tooMuch(inner, depth); e.skipped {
				e.size = int64(count(inner, maxCounted))
			}
		}
		w.index.add(depth, name, e)
		if w.seen != nil && e.isRegular() {
			w.seen(where, e)
		}
		if inner >= 0 {
			room := e.skipped || w.directory(inner, where, depth+1)
			leave(inner)
			if !room {
				return false
			}
		}
	}
	return true
}

// tooMuch reports that a directory is not walked.
func tooMuch(fd, depth int) bool {
	if depth >= maxDepth {
		return true
	}
	var st unix.Stat_t
	// A directory's size bounds its names: one takes at least 12 bytes.
	if unix.Fstat(fd, &st) == nil && st.Size/12 <= maxNames {
		return false
	}
	_, _, all := names(fd, maxNames)
	return !all
}

// agentFiles is where the agent keeps its files on the disk. Files in there
// which root does not own are a user's.
const agentFiles = "var/lib/exec-sandbox"

func isOurs(at string, e *entry) bool {
	return e.uid == 0 && len(at) >= len(agentFiles) && at[:len(agentFiles)] == agentFiles &&
		(len(at) == len(agentFiles) || at[len(agentFiles)] == '/')
}
