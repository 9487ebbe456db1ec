package changes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/files"
)

const (
	// maxMarks is how many marks are kept for the host, and maxMarked how many
	// bytes they may take: the oldest are dropped first.
	maxMarks  = 16
	maxMarked = 12 << 20
	// maxTexts limits the texts of one report, in bytes.
	maxTexts = 4 << 20
	// maxReport limits all lines of one report, in bytes.
	maxReport = 32 << 20
	// ticks is how long the kernel's clock for files may take to advance, with
	// a large margin.
	ticks = 40 * time.Millisecond
)

// Tracker compares states of the root.
type Tracker struct {
	upper, lower int
	store        *store

	mu    sync.Mutex
	start *Mark
	marks map[uint64]*Mark
	count uint64

	most int // bytes of an index
}

// Mark is a state that later ones can be compared with.
type Mark struct {
	index index
	kept  []version
}

// Options are what a report should contain.
type Options struct {
	Patches  bool `json:"patches"`  // include texts
	MaxFiles int  `json:"maxFiles"` // how many changes to list
}

// New returns the tracker of a root whose upper directory is "upper" on the
// scratch disk. Room returns how many bytes of that disk it may use.
func New(scratch, lower int, room func() int64) (*Tracker, error) {
	upper, err := unix.Openat(scratch, "upper", openDirectory, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the upper directory: %w", err)
	}
	if err := unix.Mkdirat(scratch, "copies", 0o700); err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("making a directory for copies: %w", err)
	}
	copies, err := unix.Openat(scratch, "copies", openDirectory, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the directory for copies: %w", err)
	}
	return &Tracker{upper: upper, lower: lower, store: newStore(copies, room), marks: map[uint64]*Mark{}, most: maxIndex}, nil
}

// Request is OPEN's payload of the methods for changes.
type Request struct {
	Since uint64 `json:"since"` // a mark's number, or 0 for the start
	Options
}

// Decode reads a request.
func Decode(payload []byte) (*Request, error) {
	r := &Request{}
	if err := json.Unmarshal(payload, r); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	return r, nil
}

// Serves reports whether a method belongs to this package.
func Serves(method string) bool { return method == "changes.mark" || method == "changes.read" }

// Open serves a request of the host.
func (t *Tracker) Open(s *channel.Stream, method string, payload []byte) error {
	r, err := Decode(payload)
	if err != nil {
		return s.Invalid(err)
	}
	m, known := t.Find(r.Since)
	if !known {
		s.Reset("invalid", "the mark is no longer kept")
		return nil
	}
	go func() { // ends with the answer; if the host leaves, sending fails
		if method == "changes.mark" {
			s.End(map[string]uint64{"mark": t.Keep(t.Mark())})
			return
		}
		s.End(t.Report(m, r.Options, func(line []byte) bool { return s.Send(channel.File, line) }))
	}()
	return nil
}

// Start makes the present state the one that reports compare with by default.
func (t *Tracker) Start() {
	if t == nil {
		return
	}
	m := t.Mark()
	t.mu.Lock()
	t.start, m = m, t.start
	t.mu.Unlock()
	t.Drop(m)
}

// Mark records the present state of the root.
func (t *Tracker) Mark() *Mark {
	if t == nil {
		return nil
	}
	var candidates []candidate
	w := walk{most: t.most, seen: func(path string, e *entry) {
		if e.size > 0 && e.size <= maxText {
			candidates = append(candidates, candidate{path, e.version()})
		}
	}}
	w.directory(t.upper, "", 0)
	// The kernel's clock for files advances in steps of a few ms. A later
	// change in the same step as the last one could not be distinguished from
	// it, so wait for the next step.
	for until := time.Now().Add(ticks); fileClock() <= w.index.last && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	return &Mark{w.index, t.store.keep(t.upper, candidates)}
}

func fileClock() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) != nil {
		return 0
	}
	return now.Nano()
}

// Drop forgets a mark.
func (t *Tracker) Drop(m *Mark) {
	if t != nil && m != nil {
		t.store.drop(m.kept)
	}
}

// Keep gives a mark a number, by which the host can refer to it. It drops the
// oldest marks when there are too many.
func (t *Tracker) Keep(m *Mark) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	t.marks[t.count] = m
	total := 0
	for id := t.count; id > 0; id-- {
		old := t.marks[id]
		if old == nil {
			break // and so are all older ones
		}
		if total += len(old.index.data); id != t.count && (t.count-id >= maxMarks || total > maxMarked) {
			delete(t.marks, id)
			t.Drop(old)
		}
	}
	return t.count
}

// Find returns a kept mark, or the start for number 0; false when it is not
// kept any more.
func (t *Tracker) Find(id uint64) (*Mark, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id == 0 {
		return t.start, true
	}
	m := t.marks[id]
	return m, m != nil
}

// Report compares the present with a mark and sends a line of JSON for each
// change. Send may wait, and returns false when the host has left.
func (t *Tracker) Report(m *Mark, o Options, send func([]byte) bool) *Summary {
	if m == nil {
		m = &Mark{}
	}
	c := &comparison{tracker: t, before: m.index.cursor(), readable: comparedBytes}
	c.directory(level{upper: t.upper, lower: t.lower, below0: true, below1: true})
	c.join()
	listed, size, texts := 0, 0, int64(maxTexts)
	for i, found := range c.found {
		c.found[i] = nil
		if found.matched {
			continue
		}
		if listed == o.MaxFiles {
			break
		}
		line := t.line(found, o, &texts)
		if size += len(line); size > maxReport || !send(line) {
			break
		}
		listed++
	}
	s := &c.summary
	s.Unlisted = s.Created + s.Modified + s.Deleted + s.Renamed - listed
	return s
}

// Conclude sends a stream what changed since a mark, and drops the mark. It
// returns nil when no report was asked for.
func (t *Tracker) Conclude(s *channel.Stream, m *Mark, o *Options) *Summary {
	if t == nil || m == nil || o == nil {
		return nil
	}
	defer t.Drop(m)
	return t.Report(m, *o, func(line []byte) bool { return s.Send(channel.File, line) })
}

// line reports one change. The path is absolute.
type line struct {
	Kind    string      `json:"kind"`
	Path    files.Name  `json:"path"`
	From    *files.Name `json:"from,omitempty"`
	Before  *state      `json:"before,omitempty"`
	After   *state      `json:"after,omitempty"`
	Content bool        `json:"content"`       // the content changed
	Text    string      `json:"text"`          // text, none, binary, large, lost, budget
	Old     *string     `json:"old,omitempty"` // with "text": both contents; empty where there was no file
	New     *string     `json:"new,omitempty"`
}

type state struct {
	Type   string      `json:"type"`
	Size   int64       `json:"size"`
	Mode   uint32      `json:"mode"`
	UID    uint32      `json:"uid"`
	GID    uint32      `json:"gid"`
	Target *files.Name `json:"target,omitempty"`
}

func stateOf(s *side) *state {
	if s == nil {
		return nil
	}
	it := &state{Type: files.KindOf(s.mode), Mode: s.mode & 0o7777, UID: s.uid, GID: s.gid}
	if s.isRegular() {
		it.Size = s.size
	}
	if s.target != "" {
		target := files.Name(s.target)
		it.Target = &target
	}
	return it
}

func (t *Tracker) line(found *change, o Options, texts *int64) []byte {
	it := line{
		Kind: found.kind, Path: files.Name("/" + found.path), Before: stateOf(found.old), After: stateOf(found.new),
		Content: found.content, Text: "none",
	}
	if found.from != "" {
		from := files.Name("/" + found.from)
		it.From = &from
	}
	if o.Patches && found.content {
		it.Old, it.New, it.Text = t.texts(found, texts)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(it) != nil { // cannot happen: the values are our own
		return nil
	}
	return out.Bytes()
}

// texts reads both contents, if a patch can be made of them.
func (t *Tracker) texts(found *change, left *int64) (old, new *string, what string) {
	var read [2]string
	what = "text"
	for i, s := range [...]*side{found.old, found.new} {
		if s == nil || !s.isRegular() || s.size == 0 {
			continue
		}
		text, problem := t.text(s)
		if problem == "binary" || what == "text" {
			what = problem
		}
		read[i] = text
	}
	if what != "text" {
		return nil, nil, what
	}
	if total := int64(len(read[0]) + len(read[1])); total > *left {
		return nil, nil, "budget"
	} else {
		*left -= total
	}
	return &read[0], &read[1], what
}

func (t *Tracker) text(s *side) (text, what string) {
	if s.size > maxText {
		return "", "large"
	}
	fd := t.open(s)
	if fd < 0 {
		return "", "lost"
	}
	defer leave(fd)
	content, whole := readAll(fd, maxText)
	switch {
	case !whole:
		return "", "large"
	case !isText(content):
		return "", "binary"
	}
	return string(content), "text"
}
