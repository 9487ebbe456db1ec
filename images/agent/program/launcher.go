package program

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// launcher is the program that runs between the agent's fork and a user's
// program; see images/interpreters/launch.c. (With the agent in its place, this
// step took two thirds of a short program's time.)
const launcher = "/usr/lib/exec-sandbox/launch"

// Step is what the launcher does before it becomes the program.
type Step struct {
	Procs string // the file by which it enters its cgroup
	User  User
	// For a caller's program only: how large its files may become in bytes (0:
	// any size), its working directory, which it enters as the user, and the
	// descriptor on which the launcher reports a failure.
	FileSize int64
	Cwd      string
	Report   int
}

// Command is the command line of the launcher.
func (s Step) Command(argv []string) []string {
	head := []string{
		launcher, s.Procs, strconv.Itoa(s.User.UID), strconv.Itoa(s.User.GID),
		strconv.FormatInt(s.FileSize, 10), strconv.Itoa(s.Report), s.Cwd,
	}
	return append(head, argv...)
}

// ParseFailure reads the launcher's report; nil when there is none because the
// launcher became the program.
func ParseFailure(text []byte) *Failure {
	if len(text) == 0 {
		return nil
	}
	f := &Failure{Kind: FailedSetup, Message: "unknown report of the launcher"}
	head, about := text, []byte(nil)
	if at := bytes.IndexByte(text, 0); at >= 0 {
		head, about = text[:at], text[at+1:]
	}
	if len(head) == 0 {
		return f
	}
	number, err := strconv.Atoi(string(head[1:]))
	kind, known := failures[head[0]]
	if err != nil || !known {
		return f
	}
	errno := unix.Errno(number)
	f.Kind, f.Errno, f.Message = kind, unix.ErrnoName(errno), errno.Error()
	if kind == FailedSetup {
		f.Message = string(about) + ": " + f.Message
	} else {
		f.Path = string(about)
	}
	return f
}

// failures are the letters that the launcher reports.
var failures = map[byte]string{
	'n': NotFound, 'x': NotExecutable, 'p': NotPermitted, 'c': NotEntered, 'l': TooLarge, 's': FailedSetup,
}
