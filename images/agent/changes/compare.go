package changes

import (
	"path"
)

const (
	// maxFound is how many changes are kept, to list them and to find renames.
	// Further changes are only counted.
	maxFound = 10000
	// comparedBytes is how many bytes are read, at most, to compare contents.
	comparedBytes = 64 << 20
)

// side is a file in one of the two states, and where its content is, if it
// still exists.
type side struct {
	*entry
	root int // of the layer; -1: only the store may have the content
	path string
}

// change is one difference between the two states.
type change struct {
	kind       string // created, modified, deleted, renamed
	path, from string
	old, new   *side
	content    bool // its content differs
	matched    bool // it is half of a rename that is reported elsewhere
}

// Summary counts all changes, listed or not.
type Summary struct {
	Created    int `json:"created"`
	Modified   int `json:"modified"`
	Deleted    int `json:"deleted"`
	Renamed    int `json:"renamed"`
	Unlisted   int `json:"unlisted"`   // counted above, but not listed
	Unexamined int `json:"unexamined"` // files that could not be compared
}

// comparison is one walk over two states of the root at once.
type comparison struct {
	tracker  *Tracker
	before   *cursor
	found    []*change
	summary  Summary
	readable int64 // how many bytes may still be read
}

// level is a directory in both states. A layer that does not have it is -1.
type level struct {
	path         string
	depth        int
	upper, lower int
	// Whether the image's directory shows through, before and now.
	below0, below1 bool
}

func (c *comparison) directory(l level) {
	ups, n, all := names(l.upper, maxNames)
	if !all {
		c.summary.Unexamined += n
		c.before.skip(l.depth - 1)
		return
	}
	var lows []string
	if l.below0 != l.below1 {
		lows, _, _ = names(l.lower, maxNames)
	}
	for {
		name, ok := "", false
		least := func(candidate string) {
			if !ok || candidate < name {
				name, ok = candidate, true
			}
		}
		if c.before.at(l.depth) {
			least(c.before.now.name)
		}
		if len(ups) > 0 {
			least(ups[0])
		}
		if len(lows) > 0 {
			least(lows[0])
		}
		if !ok {
			return
		}
		inUpper := len(ups) > 0 && ups[0] == name
		if inUpper {
			ups = ups[1:]
		}
		if len(lows) > 0 && lows[0] == name {
			lows = lows[1:]
		}
		c.name(l, name, inUpper)
	}
}

// name compares the two states of one name.
func (c *comparison) name(l level, name string, inUpper bool) {
	where := path.Join(l.path, name)
	var e0, e1, low *entry
	if c.before.beyond() {
		// The index does not reach this far.
		c.summary.Unexamined++
		if fd := enter(l.upper, name); fd >= 0 {
			c.summary.Unexamined += count(fd, maxCounted)
			leave(fd)
		}
		return
	}
	if c.before.at(l.depth) && c.before.now.name == name {
		was := c.before.now.entry
		e0 = &was
		c.before.next()
	}
	if inUpper {
		e1 = look(l.upper, name)
	}
	if e1 != nil && isOurs(where, e1) {
		e1 = nil
		if e0 == nil {
			return
		}
	}
	if e0 != nil && e1 != nil && !e1.isDirectory() && e0.same(e1) {
		return
	}
	if l.lower >= 0 && (l.below0 || l.below1) {
		low = look(l.lower, name)
	}
	fd := -1
	if e1.isDirectory() {
		if fd = enter(l.upper, name); fd >= 0 {
			defer leave(fd)
			e1.opaque = isOpaque(fd)
		}
	}
	v0 := c.visible(e0, low, l.below0, where, -1)
	v1 := c.visible(e1, low, l.below1, where, c.tracker.upper)
	if v0 != nil && v1 != nil && v0.entry == v1.entry {
		v0 = v1 // the image's file, in both
	}
	c.pair(where, v0, v1)

	if !v0.directory() && !v1.directory() {
		c.before.skip(l.depth)
		return
	}
	if e0 != nil && e0.skipped || e1.isDirectory() && tooMuch(fd, l.depth) {
		inside := count(fd, maxCounted)
		if e0 != nil && e0.skipped && int(e0.size) > inside {
			inside = int(e0.size)
		}
		c.summary.Unexamined += inside
		c.before.skip(l.depth)
		return
	}
	inner := level{path: where, depth: l.depth + 1, upper: fd, lower: -1}
	if low.isDirectory() {
		inner.below0 = l.below0 && (e0 == nil || e0.isDirectory() && !e0.opaque)
		inner.below1 = l.below1 && (e1 == nil || e1.isDirectory() && !e1.opaque)
	}
	if inner.below0 || inner.below1 {
		inner.lower = enter(l.lower, name)
		defer leave(inner.lower)
	}
	if l.depth < maxDepth {
		c.directory(inner)
	}
	c.before.skip(l.depth)
}

// visible is the file that users saw under a name: the upper layer's, or the
// image's where that shows through.
func (c *comparison) visible(up, low *entry, below bool, at string, upper int) *side {
	switch {
	case up != nil && up.isWhiteout():
		return nil
	case up != nil:
		return &side{up, upper, at}
	case below && low != nil:
		return &side{low, c.tracker.lower, at}
	}
	return nil
}

func (s *side) directory() bool { return s != nil && s.isDirectory() }

// pair adds what happened to one name.
func (c *comparison) pair(at string, old, new *side) {
	switch {
	case old == nil && new == nil, old == new:
	case old == nil:
		c.add(&change{kind: "created", path: at, new: new, content: new.isRegular()}, &c.summary.Created)
	case new == nil:
		c.add(&change{kind: "deleted", path: at, old: old, content: old.isRegular()}, &c.summary.Deleted)
	default:
		content := c.differ(old, new)
		if content || old.kind() != new.kind() || old.mode != new.mode || old.uid != new.uid || old.gid != new.gid ||
			old.target != new.target || old.rdev != new.rdev {
			c.add(&change{kind: "modified", path: at, old: old, new: new, content: content}, &c.summary.Modified)
		}
	}
}

func (c *comparison) add(found *change, counter *int) {
	*counter++
	if len(c.found) < maxFound {
		c.found = append(c.found, found)
	}
}

// differ reports whether the content under a name has changed.
func (c *comparison) differ(old, new *side) bool {
	if !old.isRegular() || !new.isRegular() {
		return old.isRegular() || new.isRegular()
	}
	if old.size != new.size {
		return true
	}
	if old.size == 0 {
		return false
	}
	if old.root == new.root && old.inode == new.inode && old.changed == new.changed {
		return false
	}
	if same, known := c.same(old, new); known {
		return !same
	}
	if old.modified != new.modified {
		return true
	}
	// Either a copy of the image's file with the same time, or the same file
	// with another mode, owner or name. Anything else counts as a change.
	return old.root < 0 && (old.inode != new.inode ||
		old.mode == new.mode && old.uid == new.uid && old.gid == new.gid && old.links == new.links)
}

// identity is what stays the same when a file is renamed.
type identity struct {
	inode uint64
	born  int64
	kind  uint32
}

func (e *entry) identity() identity { return identity{e.inode, e.born, e.kind()} }

// join turns a file that was deleted in one place and created in another into a
// rename. A file of the image is copied when it is renamed, so it remains two
// changes.
func (c *comparison) join() {
	gone := map[identity]*change{}
	for _, found := range c.found {
		if found.kind == "deleted" && found.old.root < 0 {
			gone[found.old.identity()] = found
		}
	}
	for _, found := range c.found {
		if found.kind != "created" || found.new.root != c.tracker.upper {
			continue
		}
		key := found.new.identity()
		from := gone[key]
		if from == nil {
			continue
		}
		delete(gone, key)
		from.matched = true
		found.kind, found.from, found.old = "renamed", from.path, from.old
		found.content = c.moved(found.old, found.new)
		c.summary.Created--
		c.summary.Deleted--
		c.summary.Renamed++
	}
}

// moved reports whether the content of a renamed file changed too. The rename
// itself changed the inode's time.
func (c *comparison) moved(old, new *side) bool {
	if !old.isRegular() || old.size != new.size {
		return old.isRegular()
	}
	if same, known := c.same(old, new); known {
		return !same
	}
	return old.modified != new.modified
}

// same compares two contents, if both still exist.
func (c *comparison) same(old, new *side) (same, known bool) {
	a, b := c.tracker.open(old), c.tracker.open(new)
	defer leave(a)
	defer leave(b)
	if a < 0 || b < 0 {
		return false, false
	}
	return equal(a, b, &c.readable)
}

// open opens the content that a file had in its state; -1 when that is lost.
func (t *Tracker) open(s *side) int {
	if !s.isRegular() {
		return -1
	}
	if s.root < 0 {
		return t.store.open(s.version())
	}
	return openFile(s.root, s.path)
}
