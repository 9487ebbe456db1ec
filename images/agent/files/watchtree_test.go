package files

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// observer is a recursive watch of a real directory.
type observer struct {
	*watcher
	t    *testing.T
	root string
}

func observe(t *testing.T, prepare func(root string)) *observer {
	t.Helper()
	root := t.TempDir()
	prepare(root)
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	o := &observer{newWatcher(root, fd, true), t, root}
	if err := o.begin(); err != nil {
		t.Fatal(err)
	}
	return o
}

// seen is what the kernel has reported until now.
func (o *observer) seen() (all []string) {
	o.t.Helper()
	buffer := make([]byte, 4096)
	for {
		n, err := unix.Read(o.fd, buffer)
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			o.t.Fatal(err)
		}
		o.take(buffer[:n])
	}
	o.settle()
	o.rest()
	for _, line := range strings.Split(strings.TrimSpace(string(o.lines)), "\n") {
		var c change
		if line == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			o.t.Fatal(err)
		}
		text := c.Kind + " " + strings.TrimPrefix(string(c.Path), o.root)
		if c.From != nil {
			text += " " + strings.TrimPrefix(string(*c.From), o.root)
		}
		all = append(all, text)
	}
	o.lines, o.last = nil, change{}
	return all
}

func (o *observer) expect(want ...string) {
	o.t.Helper()
	got := o.seen()
	if len(want) > 6 { // in the directory's order
		sort.Strings(got)
	}
	if !reflect.DeepEqual(got, want) {
		o.t.Errorf("got %q\nwant %q", got, want)
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchOfATree(t *testing.T) {
	o := observe(t, func(root string) {
		do(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
		do(t, os.Mkdir(filepath.Join(root, "empty"), 0o755))
	})
	at := func(name string) string { return filepath.Join(o.root, name) }
	make := func(name string) { do(t, os.WriteFile(at(name), nil, 0o644)) }
	elsewhere := t.TempDir()

	make("a/b/file")
	o.expect("create /a/b/file")
	// Everything was made before the watch reads about the first directory.
	do(t, os.MkdirAll(at("new/deep/er"), 0o755))
	make("new/deep/er/1")
	make("new/2")
	o.expect("create /new", "create /new/2", "create /new/deep", "create /new/deep/er", "create /new/deep/er/1")
	make("new/deep/er/3")
	do(t, os.Remove(at("new/2")))
	make("new/2")
	o.expect("create /new/deep/er/3", "remove /new/2", "create /new/2")
	// A directory is still watched under its new name, with everything below.
	do(t, os.Rename(at("new/deep"), at("a/moved")))
	make("a/moved/er/4")
	o.expect("rename /a/moved /new/deep", "create /a/moved/er/4")
	do(t, unix.Rename(at("a/moved"), at("empty"))) // in place of another
	make("empty/er/5")
	o.expect("rename /empty /a/moved", "create /empty/er/5")
	// A directory that was moved away is not watched; one that was moved in is
	// scanned.
	do(t, os.Rename(at("empty"), filepath.Join(elsewhere, "x")))
	do(t, os.WriteFile(filepath.Join(elsewhere, "x/er/6"), nil, 0o644))
	o.expect("remove /empty")
	do(t, os.Rename(filepath.Join(elsewhere, "x"), at("back")))
	o.expect("create /back", "create /back/er", "create /back/er/1", "create /back/er/3", "create /back/er/4",
		"create /back/er/5", "create /back/er/6")
	do(t, os.Chmod(at("back/er"), 0o700))
	o.expect("modify /back/er")
	// A link is one file, wherever it points.
	do(t, os.Symlink(elsewhere, at("link")))
	do(t, os.WriteFile(filepath.Join(elsewhere, "7"), nil, 0o644))
	o.expect("create /link")
	do(t, os.RemoveAll(at("back")))
	if got := o.seen(); got[len(got)-1] != "remove /back" {
		t.Errorf("got %q", got)
	}
	if len(o.numbers) != 4 { // the root, a, b, new
		t.Errorf("%d directories are watched", len(o.numbers))
	}
	do(t, os.RemoveAll(o.root))
	if got := o.seen(); got[len(got)-1] != "remove " || !o.over {
		t.Errorf("got %q", got)
	}
}

func TestWatchMissesNothingOfAGrowingTree(t *testing.T) {
	o := observe(t, func(string) {})
	done := make(chan struct{})
	want := map[string]bool{}
	for i := 0; i < 200; i++ {
		want[fmt.Sprintf("create /d%d", i)] = true
		want[fmt.Sprintf("create /d%d/e", i)] = true
		want[fmt.Sprintf("create /d%d/e/f", i)] = true
	}
	go func() { // ends by itself
		defer close(done)
		for i := 0; i < 200; i++ {
			directory := filepath.Join(o.root, fmt.Sprintf("d%d/e", i))
			_ = os.MkdirAll(directory, 0o755)
			_ = os.Mkdir(filepath.Join(directory, "f"), 0o755)
		}
	}()
	reported := map[string]int{}
	for over := false; ; {
		for _, line := range o.seen() {
			reported[line]++
		}
		if over {
			break
		}
		select {
		case <-done:
			over = true
		default:
		}
	}
	for line := range want {
		if reported[line] != 1 {
			t.Errorf("%q is reported %d times", line, reported[line])
		}
	}
	if len(reported) != len(want) {
		t.Errorf("%d lines are reported, not %d", len(reported), len(want))
	}
}

func TestWatchAfterChangesWereLost(t *testing.T) {
	o := observe(t, func(string) {})
	do(t, os.MkdirAll(filepath.Join(o.root, "a/b"), 0o755))
	// As if the kernel had had no room for this event.
	buffer := make([]byte, 4096)
	_, _ = unix.Read(o.fd, buffer)
	o.event(nil, unix.IN_Q_OVERFLOW, 0, "")
	o.expect("overflow ")
	do(t, os.WriteFile(filepath.Join(o.root, "a/b/c"), nil, 0o644))
	o.expect("create /a/b/c")
}

func TestWatchIsLimited(t *testing.T) {
	many := func(root string) {
		for i := 0; i < 50; i++ {
			do(t, os.Mkdir(filepath.Join(root, fmt.Sprint(i)), 0o755))
		}
	}
	root := t.TempDir()
	many(root)
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	do(t, err)
	defer unix.Close(fd)
	var f *Failure
	w := newWatcher(root, fd, true)
	w.most = 50
	if err := w.begin(); err == nil || !asFailure(err, &f) || f.Code != tooMany {
		t.Errorf("got %v", err)
	}
	o := observe(t, func(string) {})
	o.most = 50
	many(o.root)
	overflows := 0
	for _, line := range o.seen() {
		if line == "overflow " {
			overflows++
		}
	}
	if overflows != 1 || len(o.numbers) != 50 {
		t.Errorf("%d overflows, %d directories", overflows, len(o.numbers))
	}
}

func asFailure(err error, f **Failure) (ok bool) {
	*f, ok = err.(*Failure)
	return ok
}
