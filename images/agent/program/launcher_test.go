package program

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// launch runs the launcher without what needs privileges.
func launch(t *testing.T) func(cwd string, argv ...string) *Failure {
	t.Helper()
	compiler, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no compiler")
	}
	path := filepath.Join(t.TempDir(), "launch")
	build := exec.Command(compiler, "-DWITHOUT_PRIVILEGES", "-O2", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector",
		"-fno-tree-loop-distribute-patterns", "-fno-pie", "-no-pie", "-o", path, "../../interpreters/launch.c")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return func(cwd string, argv ...string) *Failure {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		command := Step{Cwd: cwd, Report: 3}.Command(argv)
		run := &exec.Cmd{Path: path, Args: command, ExtraFiles: []*os.File{write}}
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		_ = write.Close()
		text, err := io.ReadAll(read)
		if err != nil {
			t.Fatal(err)
		}
		_ = run.Wait()
		return ParseFailure(text)
	}
}

func TestUnknownFailures(t *testing.T) {
	for _, text := range []string{"x", "?1\x00", "nx\x00", "\x00"} {
		if f := ParseFailure([]byte(text)); f == nil || f.Kind != FailedSetup {
			t.Errorf("%q: got %+v", text, f)
		}
	}
	if f := ParseFailure([]byte("s13\x00entering the cgroup")); f.Errno != "EACCES" || f.Message != "entering the cgroup: permission denied" {
		t.Errorf("got %+v", f)
	}
}

func TestWhatCannotBeStarted(t *testing.T) {
	become := launch(t)
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
	t.Setenv("PATH", "/no/such:"+root+":/usr/bin")
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
		if f := become("/", c.name); f == nil || f.Kind != c.kind || f.Path != c.path {
			t.Errorf("%q: got %+v", c.name, f)
		}
	}
	if f := become(root+"/missing", "true"); f == nil || f.Kind != NotEntered || f.Errno != "ENOENT" {
		t.Errorf("got %+v", f)
	}
	if f := become("/", "true"); f != nil {
		t.Errorf("got %+v", f)
	}
}
