package files

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNamesAreLossless(t *testing.T) {
	for name, want := range map[string]string{
		"a":        `"a"`,
		"ü\n\"\\-": `"ü\n\"\\-"`,
		"a\xff":    `{"hex":"61ff"}`,
		"\xed\xb2": `{"hex":"edb2"}`,
		`\xff`:     `"\\xff"`,
	} {
		got, err := json.Marshal(Name(name))
		if err != nil || string(got) != want {
			t.Errorf("%q is %s (%v), not %s", name, got, err, want)
		}
		var back Name
		if err := json.Unmarshal(got, &back); err != nil || string(back) != name {
			t.Errorf("%s is %q (%v), not %q", got, back, err, name)
		}
		line, err := appendName(nil, name)
		var again Name
		if err != nil || json.Unmarshal(line, &again) != nil || again != back {
			t.Errorf("%q in a line is %s (%v)", name, line, err)
		}
	}
	for _, bad := range []string{`{"hex":"6"}`, `{"hex":"zz"}`, `1`, `[]`} {
		var n Name
		if json.Unmarshal([]byte(bad), &n) == nil {
			t.Errorf("%s is taken for a name", bad)
		}
	}
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		err  error
		code string
		path string
	}{
		{unix.ENOENT, "ENOENT", ""},
		{at("/x", unix.EACCES), "EACCES", "/x"},
		{at("/x", &Failure{Code: changed}), "CHANGED", "/x"},
		{errors.New("?"), "EIO", ""},
		{regular(unix.S_IFIFO), notAFile, ""},
		{regular(unix.S_IFDIR), "EISDIR", ""},
	} {
		f := failure(c.err)
		path := ""
		if f.Path != nil {
			path = string(*f.Path)
		}
		if f.Code != c.code || path != c.path {
			t.Errorf("%v is %s at %q, not %s at %q", c.err, f.Code, path, c.code, c.path)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	minus := int64(-1)
	for _, r := range []Request{
		{Method: "file.read"},
		{Method: "file.read", Path: "a\x00"},
		{Method: "file.rename", Path: "a"},
		{Method: "file.read", Path: "a", User: "other"},
		{Method: "file.read", Path: "a", Offset: -1},
		{Method: "file.read", Path: "a", Length: &minus},
	} {
		if r.check() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	good := Request{Method: "file.read", Path: "a", User: "root"}
	if err := good.check(); err != nil {
		t.Error(err)
	}
}

func TestFollowLinks(t *testing.T) {
	root := t.TempDir()
	for name, target := range map[string]string{
		"relative": "file", "absolute": root + "/file", "chain": "relative", "dangling": "nothing", "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"relative": "file", "absolute": "file", "chain": "file", "dangling": "nothing", "none": "none",
	} {
		got, err := followLinks(root + "/" + name)
		if err != nil || got != root+"/"+want {
			t.Errorf("%s leads to %s (%v), not %s", name, got, err, want)
		}
	}
	if _, err := followLinks(root + "/loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a loop is %v", err)
	}
}

func TestReplaceLeavesTheOldFileOrTheNewOne(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(root+"/f", []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	base, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(base)
	buffer := make([]byte, 16)
	broken := &failing{strings.NewReader("half"), errCancelled}
	if _, err := replace(base, "f", nil, 0o644, nil, broken, buffer); !errors.Is(err, errCancelled) {
		t.Fatalf("the failure is %v", err)
	}
	check := func(want string) {
		t.Helper()
		got, err := os.ReadFile(root + "/f")
		entries, _ := os.ReadDir(root)
		if err != nil || string(got) != want || len(entries) != 1 {
			t.Fatalf("%q (%v) in %v", got, err, entries)
		}
	}
	check("old")
	n, err := replace(base, "f", nil, 0o644, nil, strings.NewReader(strings.Repeat("new", 20)), buffer)
	if err != nil || n != 60 {
		t.Fatal(n, err)
	}
	check(strings.Repeat("new", 20))
	info, err := os.Stat(root + "/f")
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Fatal(info.Mode(), err)
	}
}

type failing struct {
	*strings.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	if f.Len() == 0 {
		return 0, f.err
	}
	return f.Reader.Read(p)
}

func TestWatchPairsRenames(t *testing.T) {
	type event struct {
		mask, cookie uint32
		name         string
	}
	for name, c := range map[string]struct {
		events []event
		want   []string
	}{
		"a rename": {
			[]event{{unix.IN_MOVED_FROM, 1, "a"}, {unix.IN_MOVED_TO, 1, "b"}},
			[]string{"rename /w/b"},
		},
		"one that leaves and one that comes": {
			[]event{{unix.IN_MOVED_FROM, 1, "a"}, {unix.IN_MOVED_TO, 2, "b"}},
			[]string{"remove /w/a", "create /w/b"},
		},
		"a draft put in place": {
			[]event{{unix.IN_CREATE, 0, temporary + "1"}, {unix.IN_MODIFY, 0, temporary + "1"},
				{unix.IN_MOVED_FROM, 1, temporary + "1"}, {unix.IN_MOVED_TO, 1, "f"}},
			[]string{"create /w/f"},
		},
		"the same change again and again": {
			[]event{{unix.IN_MODIFY, 0, "f"}, {unix.IN_MODIFY, 0, "f"}, {unix.IN_MODIFY, 0, "g"}, {unix.IN_MODIFY, 0, "f"}},
			[]string{"modify /w/f", "modify /w/g", "modify /w/f"},
		},
		"too much": {[]event{{unix.IN_Q_OVERFLOW, 0, ""}}, []string{"overflow /w"}},
		"the end":  {[]event{{unix.IN_DELETE_SELF, 0, ""}}, []string{"remove /w"}},
	} {
		w := newWatcher("/w", -1, false)
		for _, e := range c.events {
			w.event(w.root, e.mask, e.cookie, e.name)
		}
		var got []string
		for _, line := range strings.Fields(string(w.lines)) {
			var one change
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatal(err)
			}
			got = append(got, one.Kind+" "+string(one.Path))
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s is %v, not %v", name, got, c.want)
		}
	}
}
