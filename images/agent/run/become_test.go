package run

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWhatCannotBeStarted(t *testing.T) {
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"text": 0o755, "locked": 0o644, "lost": 0o755} {
		text := "echo met a shell"
		if name == "lost" {
			text = "#!/no/such/thing\n"
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", "/no/such:"+root)
	for _, c := range []struct{ name, kind, path string }{
		{"", NotFound, ""},
		{"missing", NotFound, ""},
		{root + "/missing", NotFound, ""},
		{root + "/text/below", NotFound, ""},
		{"text", NotExecutable, root + "/text"},
		{"lost", NotExecutable, root + "/lost"},
		{"locked", NotPermitted, root + "/locked"},
		{root, NotExecutable, root},
	} {
		if f := become("/", []string{c.name}); f.Kind != c.kind || f.Path != c.path {
			t.Errorf("%q: got %+v", c.name, f)
		}
	}
	if f := become(root+"/missing", []string{"true"}); f.Kind != NotEntered || f.Errno != "ENOENT" {
		t.Errorf("got %+v", f)
	}
	if f := become("/", []string{root + "/text", strings.Repeat("x", 1<<22)}); f.Kind != TooLarge {
		t.Errorf("got %+v", f)
	}
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		failure Failure
		known   bool
		code    int
	}{
		{Failure{Kind: NotFound, Errno: "ENOENT"}, true, 127},
		{Failure{Kind: NotExecutable, Errno: "ENOENT", Path: "/x"}, true, 127},
		{Failure{Kind: NotExecutable, Errno: "ENOEXEC", Path: "/x"}, true, 126},
		{Failure{Kind: NotPermitted, Errno: "EACCES", Path: "/x"}, true, 126},
		{Failure{Kind: NotEntered, Errno: "EACCES", Path: "/x"}, true, 126},
		{Failure{Kind: NotEntered, Errno: "ENOENT", Path: "/x"}, false, 0},
		{Failure{Kind: TooLarge}, false, 0},
	} {
		e := &evidence{}
		e.fromStatus(syscall.WaitStatus(0))
		f := c.failure
		if known := e.Explain("x", &f); known != c.known || known && *e.ExitCode != c.code {
			t.Errorf("%+v: got %v, %d", f, known, *e.ExitCode)
		}
	}
}
