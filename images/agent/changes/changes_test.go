package changes

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// machine is an overlay like a machine's root. To make one, the test must run
// as root.
type machine struct {
	t       *testing.T
	root    string // as users see it
	tracker *Tracker
}

// newMachine makes a machine in a directory of its own, and lets prepare fill
// its image.
func newMachine(t *testing.T, prepare func(image string)) *machine {
	base := t.TempDir()
	dir := func(name string) string { return filepath.Join(base, name) }
	for _, name := range []string{"lower", "scratch", "scratch/upper", "scratch/work", "root"} {
		if err := os.Mkdir(dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	prepare(dir("lower"))
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir("lower"), dir("scratch/upper"), dir("scratch/work"))
	if err := unix.Mount("overlay", dir("root"), "overlay", 0, data); err != nil {
		t.Skipf("no overlay can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir("root"), unix.MNT_DETACH) })
	scratch, err := unix.Open(dir("scratch"), openDirectory, 0)
	if err != nil {
		t.Fatal(err)
	}
	lower, err := unix.Open(dir("lower"), openDirectory, 0)
	if err != nil {
		t.Fatal(err)
	}
	tracker, err := New(scratch, lower, func() int64 { return 1 << 30 })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range []int{scratch, lower, tracker.upper, tracker.store.directory} {
			_ = unix.Close(fd)
		}
	})
	return &machine{t, dir("root"), tracker}
}

func (m *machine) at(name string) string { return filepath.Join(m.root, name) }

func (m *machine) write(name, content string) {
	m.t.Helper()
	must(m.t, os.MkdirAll(filepath.Dir(m.at(name)), 0o755))
	must(m.t, os.WriteFile(m.at(name), []byte(content), 0o644))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// report returns what a report sends, by path.
func (m *machine) report(mark *Mark) (map[string]line, *Summary) {
	m.t.Helper()
	found := map[string]line{}
	s := m.tracker.Report(mark, Options{Patches: true, MaxFiles: maxFound}, func(text []byte) bool {
		var l line
		must(m.t, json.Unmarshal(text, &l))
		if _, twice := found[string(l.Path)]; twice {
			m.t.Errorf("%s is reported twice", l.Path)
		}
		found[string(l.Path)] = l
		return true
	})
	return found, s
}

// walkAll describes every file, the slow way, to compare reports with.
func (m *machine) walkAll() map[string]string {
	all := map[string]string{}
	must(m.t, filepath.Walk(m.root, func(name string, info os.FileInfo, err error) error {
		if err != nil || name == m.root {
			return err
		}
		var st unix.Stat_t
		must(m.t, unix.Lstat(name, &st))
		content := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := os.ReadFile(name)
			must(m.t, err)
			content = string(text)
		case unix.S_IFLNK:
			content, _ = os.Readlink(name)
		}
		all[strings.TrimPrefix(name, m.root)] = fmt.Sprintf("%o %d %d %d %q", st.Mode, st.Uid, st.Gid, st.Rdev, content)
		return nil
	}))
	return all
}

// difference is what a report must contain for two walks.
func difference(before, after map[string]string) map[string]string {
	all := map[string]string{}
	for name, was := range before {
		if is, ok := after[name]; !ok {
			all[name] = "deleted"
		} else if is != was {
			all[name] = "modified"
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			all[name] = "created"
		}
	}
	return all
}

// kinds counts each rename as two changes.
func kinds(t *testing.T, found map[string]line, s *Summary) map[string]string {
	all := map[string]string{}
	counted := map[string]int{}
	for name, l := range found {
		counted[l.Kind]++
		if l.Kind == "renamed" {
			all[name], all[string(*l.From)] = "created", "deleted"
		} else {
			all[name] = l.Kind
		}
	}
	want := Summary{Created: counted["created"], Modified: counted["modified"], Deleted: counted["deleted"], Renamed: counted["renamed"]}
	if *s != want {
		t.Errorf("the summary is %+v, the lines are %+v", *s, want)
	}
	return all
}

// write writes in place, and only to regular files: a FIFO would wait.
func write(name string, content []byte) {
	if _, err := os.Lstat(name); err != nil || isFile(name) {
		_ = os.WriteFile(name, content, 0o644)
	}
}

func isFile(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.Mode().IsRegular()
}

// act does something random below a directory, which may fail.
func act(r *rand.Rand, root string) {
	pick := func() string {
		parts := []string{root}
		for i := 0; i < 1+r.Intn(3); i++ {
			parts = append(parts, string(rune('a'+r.Intn(4))))
		}
		return filepath.Join(parts...)
	}
	text := func() []byte { return []byte(strings.Repeat(fmt.Sprintf("line %d\n", r.Intn(3)), r.Intn(4))) }
	name, other := pick(), pick()
	switch r.Intn(17) {
	case 0, 1, 2:
		write(name, text())
	case 3:
		draft := name + ".draft"
		if os.WriteFile(draft, text(), 0o600) == nil && os.Rename(draft, name) != nil {
			_ = os.Remove(draft)
		}
	case 4:
		if isFile(name) {
			old, _ := os.ReadFile(name)
			write(name, append(old, text()...))
		}
	case 5:
		if info, err := os.Lstat(name); err == nil && info.Mode()&os.ModeSymlink == 0 {
			_ = os.Chmod(name, os.FileMode([]int{0o755, 0o700, 0o644}[r.Intn(3)]))
		}
	case 6:
		_ = os.Lchown(name, r.Intn(3), r.Intn(3))
	case 7:
		_ = os.Remove(name)
	case 8:
		if _, err := os.Lstat(name); err == nil { // else it would open a FIFO above
			_ = os.RemoveAll(name)
		}
	case 9, 10:
		_ = os.MkdirAll(name, 0o755)
	case 11:
		_ = os.Rename(name, other)
	case 12:
		_ = os.Symlink(string(text())+"x", name)
	case 13:
		_ = os.Link(name, other)
	case 14:
		_ = unix.Mkfifo(name, 0o644)
	case 15: // touched: nothing has changed
		if isFile(name) {
			old, _ := os.ReadFile(name)
			write(name, old)
		}
	case 16: // other content, with the same time
		if info, err := os.Lstat(name); err == nil && isFile(name) {
			write(name, text())
			_ = os.Chtimes(name, info.ModTime(), info.ModTime())
		}
	}
}

func TestReportMatchesAWalk(t *testing.T) {
	for seed := int64(0); seed < 20; seed++ {
		seed := seed
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewSource(seed))
			m := newMachine(t, func(image string) {
				for i := 0; i < 60; i++ {
					act(r, image)
				}
			})
			image := m.walkAll()
			for i := 0; i < 25; i++ {
				act(r, m.root)
			}
			mark := m.tracker.Mark()
			before := m.walkAll()
			for i := 0; i < 25; i++ {
				act(r, m.root)
			}
			after := m.walkAll()
			found, s := m.report(mark)
			if got, want := kinds(t, found, s), difference(before, after); !reflect.DeepEqual(got, want) {
				t.Errorf("since the mark: got %s\nwant %s", sorted(got), sorted(want))
			}
			for name, l := range found {
				m.checkTexts(name, l, before, after)
			}
			found, s = m.report(nil)
			if got, want := kinds(t, found, s), difference(image, after); !reflect.DeepEqual(got, want) {
				t.Errorf("since the image: got %s\nwant %s", sorted(got), sorted(want))
			}
			for name, l := range found {
				m.checkTexts(name, l, image, after)
			}
		})
	}
}

// checkTexts compares the texts of a line with the walks.
func (m *machine) checkTexts(name string, l line, before, after map[string]string) {
	if !l.Content {
		return
	}
	if l.Text != "text" {
		m.t.Errorf("%s: no text: %s", name, l.Text)
		return
	}
	from := name
	if l.From != nil {
		from = string(*l.From)
	}
	for walked, text := range map[string]string{before[from]: *l.Old, after[name]: *l.New} {
		if walked == "" || !strings.HasPrefix(walked, "100") {
			if text != "" {
				m.t.Errorf("%s: %q of no file", name, text)
			}
		} else if !strings.HasSuffix(walked, fmt.Sprintf(" %q", text)) {
			m.t.Errorf("%s: %q is not the content of %s", name, text, walked)
		}
	}
}

func sorted(all map[string]string) string {
	lines := []string{}
	for name, kind := range all {
		lines = append(lines, fmt.Sprintf("%q %s", name, kind))
	}
	sort.Strings(lines)
	return strings.Join(lines, ", ")
}

func empty(string) {}

func TestRenames(t *testing.T) {
	m := newMachine(t, func(image string) {
		must(t, os.WriteFile(filepath.Join(image, "image"), []byte("x\n"), 0o644))
	})
	m.write("d/e/inside", "1\n")
	m.write("file", "a\nb\n")
	m.write("linked", "l\n")
	m.write("gone", "g\n")
	mark := m.tracker.Mark()
	must(t, os.Rename(m.at("d"), m.at("moved")))
	must(t, os.Rename(m.at("file"), m.at("\xff\n")))
	must(t, os.WriteFile(m.at("\xff\n"), []byte("a\nc\n"), 0o644))
	must(t, os.Link(m.at("linked"), m.at("link")))
	must(t, os.Rename(m.at("image"), m.at("new")))
	// A new file may get the old one's inode, but it is not the old one.
	must(t, os.Remove(m.at("gone")))
	m.write("other", "g\n")
	found, s := m.report(mark)
	reported := map[string]string{}
	for name, l := range found {
		reported[name] = fmt.Sprintf("%s %t", l.Kind, l.Content)
		if l.From != nil {
			reported[name] += " " + string(*l.From)
		}
	}
	want := map[string]string{
		"/moved": "renamed false /d", "/moved/e": "renamed false /d/e", "/moved/e/inside": "renamed false /d/e/inside",
		"/\xff\n": "renamed true /file", "/link": "created true",
		// A file of the image stays there: its rename is a copy.
		"/image": "deleted true", "/new": "created true",
		"/gone": "deleted true", "/other": "created true",
	}
	if !reflect.DeepEqual(reported, want) {
		t.Errorf("got %v\nwant %v", reported, want)
	}
	if l := found["/\xff\n"]; *l.Old != "a\nb\n" || *l.New != "a\nc\n" {
		t.Errorf("texts %q and %q", *l.Old, *l.New)
	}
	if want := (Summary{Created: 3, Deleted: 2, Renamed: 4}); *s != want {
		t.Errorf("got %+v", *s)
	}
}

func TestWhatHasNoText(t *testing.T) {
	m := newMachine(t, empty)
	m.tracker.store.room = func() int64 { return 40 }
	m.write("early", "1\n") // there is room only for copies of the last ones
	m.write("binary", "\x00\x01")
	m.write("latin", "text")
	m.write("copied", strings.Repeat("x", 36))
	mark := m.tracker.Mark()
	for name, content := range map[string]string{
		"early": "2\n", "binary": "\x00\x02", "latin": "\xe4", "copied": "y", "large": strings.Repeat("z", maxText+1), "empty": "",
	} {
		m.write(name, content)
	}
	must(t, os.Symlink("/dev/zero", m.at("link")))
	must(t, unix.Mkfifo(m.at("pipe"), 0o600))
	device := unix.Mknod(m.at("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))
	for i := 0; i < 20; i++ {
		m.write(fmt.Sprintf("many/%02d", i), strings.Repeat("t", maxText-i))
	}
	found, _ := m.report(mark)
	for name, text := range map[string]string{
		"/early": "lost", "/binary": "binary", "/latin": "binary", "/copied": "text", "/large": "large", "/empty": "text",
		"/link": "none", "/pipe": "none", "/many": "none", "/many/00": "text", "/many/19": "budget",
	} {
		if got := found[name].Text; got != text {
			t.Errorf("%s: %q, not %q", name, got, text)
		}
	}
	if l := found["/link"]; l.After.Type != "symlink" || *l.After.Target != "/dev/zero" || l.Content {
		t.Errorf("link: %+v", l)
	}
	if device == nil && found["/device"].After.Type != "character-device" {
		t.Errorf("device: %+v", found["/device"])
	}
}

func TestLimits(t *testing.T) {
	m := newMachine(t, empty)
	m.write("a/file", "1")
	must(t, os.Mkdir(m.at("big"), 0o755))
	for i := 0; i <= maxNames; i++ {
		must(t, os.WriteFile(m.at(fmt.Sprintf("big/%d", i)), nil, 0o644))
	}
	deep := m.root
	for i := 0; i < maxDepth+5; i++ {
		deep = filepath.Join(deep, "d")
		must(t, os.Mkdir(deep, 0o755))
	}
	mark := m.tracker.Mark()
	m.write("a/file", "2")
	m.write("big/new", "")
	m.write("z", "")
	found, s := m.report(mark)
	if len(found) != 2 || found["/a/file"].Kind != "modified" || found["/z"].Kind != "created" {
		t.Errorf("found %v", found)
	}
	// Everything in the big directory, and what is too deep.
	if want := (Summary{Created: 1, Modified: 1, Unexamined: maxNames + 2 + 4}); *s != want {
		t.Errorf("got %+v, want %+v", *s, want)
	}

	must(t, os.RemoveAll(m.at("big")))
	must(t, os.RemoveAll(m.at("d")))
	m.tracker.most = 1
	cut := m.tracker.Mark() // has only the first file
	m.write("a/file", "3")
	m.write("y/1", "")
	_, s = m.report(cut)
	if want := (Summary{Unexamined: 4}); *s != want { // a/file, y, y/1, z
		t.Errorf("cut: got %+v, want %+v", *s, want)
	}
	var lines int
	s = m.tracker.Report(nil, Options{MaxFiles: 2}, func([]byte) bool { lines++; return true })
	if want := (Summary{Created: 5, Unlisted: 3}); *s != want || lines != 2 {
		t.Errorf("two of five: got %+v in %d lines", *s, lines)
	}
}

func TestMarksAreLimited(t *testing.T) {
	m := newMachine(t, empty)
	m.tracker.Start()
	var last uint64
	for i := 0; i < 40; i++ {
		m.write("file", strings.Repeat("x", i))
		last = m.tracker.Keep(m.tracker.Mark())
	}
	if len(m.tracker.marks) != maxMarks || len(m.tracker.store.users) != maxMarks {
		t.Errorf("%d marks, %d copies", len(m.tracker.marks), len(m.tracker.store.users))
	}
	copies, _, _ := names(m.tracker.store.directory, 1000)
	if len(copies) != maxMarks {
		t.Errorf("%d copies on the disk", len(copies))
	}
	if _, ok := m.tracker.Find(last); !ok {
		t.Error("the last is not kept")
	}
	if _, ok := m.tracker.Find(last - maxMarks); ok {
		t.Error("the oldest is kept")
	}
	if start, ok := m.tracker.Find(0); !ok || start == nil {
		t.Error("the start is not kept")
	}
}
