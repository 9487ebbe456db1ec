package files

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// change is one line of what a watch sends. The kernel keeps 16384 events for a
// host that reads slowly; then it reports "overflow" and drops the rest.
type change struct {
	Kind string `json:"kind"` // start, create, modify, remove, rename, overflow
	Path Name   `json:"path"`
	From *Name  `json:"from,omitempty"` // of a rename
}

const watchedEvents = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// How long to wait for the second half of a rename, in steps. If the host does
// not let this machine run, its clock jumps; such a jump counts as one step.
const (
	pairing      = 2 * time.Millisecond
	pairingSteps = 5
)

// watch sends changes until the host leaves or what is watched is removed.
func watch(r *Request, in *inbox) (any, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "inotify")
	defer file.Close()
	w := newWatcher(string(r.Path), fd, r.Recursive)
	if err := w.begin(); err != nil {
		return nil, err
	}
	finished := make(chan struct{})
	defer close(finished)
	go func() { // ends with the watch
		select {
		case <-in.gone:
			_ = file.SetReadDeadline(time.Unix(1, 0))
		case <-finished:
		}
	}()
	w.add("start", w.root, "")
	buffer := make([]byte, 64*1024)
	for {
		if err := w.send(in); err != nil || w.over {
			return struct{}{}, err
		}
		w.rest()
		n, err := file.Read(buffer)
		if err != nil {
			return nil, in.cause(err)
		}
		w.take(buffer[:n])
		for step := 0; w.moved != nil; {
			// The other half of a rename, if there is one, follows at once.
			_ = file.SetReadDeadline(time.Now().Add(pairing))
			n, err := file.Read(buffer)
			_ = file.SetReadDeadline(time.Time{})
			select {
			case <-in.gone:
				return nil, errCancelled
			default:
			}
			if err == nil {
				step = 0
				w.take(buffer[:n])
			} else if step++; step == pairingSteps {
				w.settle()
			}
		}
	}
}

// cause returns errCancelled for a read that ended because the host left.
func (in *inbox) cause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errCancelled
	}
	return err
}

type watcher struct {
	*tree
	lines  []byte
	last   change
	moved  *half // what a rename took away
	cookie uint32
	over   bool
}

// half is the first half of a rename.
type half struct {
	at   *watched
	name string
}

func newWatcher(root string, fd int, recursive bool) *watcher {
	return &watcher{tree: newTree(root, fd, recursive)}
}

func (w *watcher) add(kind string, at *watched, name string) {
	w.report(change{Kind: kind, Path: at.path(name)})
}

func (w *watcher) report(c change) {
	if c == w.last && c.Kind == "modify" {
		return // once in a batch is enough
	}
	w.last = c
	line, err := json.Marshal(c)
	if err == nil {
		w.lines = append(append(w.lines, line...), '\n')
	}
}

func (w *watcher) send(in *inbox) error {
	lines := w.lines
	w.lines, w.last = w.lines[:0], change{}
	if len(lines) == 0 {
		return nil
	}
	_, err := outbox{in.stream}.Write(lines)
	return err
}

// settle reports a name that was moved out of the tree.
func (w *watcher) settle() {
	if w.moved != nil {
		w.add("remove", w.moved.at, w.moved.name)
		w.leave(w.moved.at.below[w.moved.name])
		w.moved = nil
	}
}

func (w *watcher) take(events []byte) {
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		end := unix.SizeofInotifyEvent + int(event.Len)
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		events = events[end:]
		w.event(w.numbers[event.Wd], event.Mask, event.Cookie, name)
	}
}

func (w *watcher) event(at *watched, mask, cookie uint32, name string) {
	if w.moved != nil && !(mask&unix.IN_MOVED_TO != 0 && cookie == w.cookie) {
		w.settle()
	}
	// Our own drafts are not reported; moving one to its place is.
	draft := strings.HasPrefix(name, temporary)
	isRoot := at == w.root
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		w.add("overflow", w.root, "")
		w.again()
	case at == nil: // not watched any more
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		if isRoot {
			w.add("remove", at, "")
			w.over = true
		}
	case mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		if w.over = w.over || isRoot; !isRoot {
			w.forget(at)
		}
	case mask&unix.IN_MOVED_TO != 0 && w.moved != nil:
		from := w.moved.at.path(w.moved.name)
		w.move(w.moved.at.below[w.moved.name], at, name)
		w.moved = nil
		delete(at.scanned, name)
		w.report(change{Kind: "rename", Path: at.path(name), From: &from})
	case draft:
	case mask&unix.IN_MOVED_FROM != 0:
		w.moved, w.cookie = &half{at, name}, cookie
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		if !at.scanned[name] { // else it was reported when its directory was scanned
			w.add("create", at, name)
		}
		delete(at.scanned, name)
		if mask&unix.IN_ISDIR != 0 {
			w.enter(at, name, func(kind string, at *watched, name string) { w.add(kind, at, name) })
		}
	case mask&unix.IN_DELETE != 0:
		delete(at.scanned, name)
		w.add("remove", at, name)
	case mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0 && (isRoot || name != ""): // else its parent's watch reports it
		w.add("modify", at, name)
	}
}
