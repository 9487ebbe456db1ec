package run

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// launcher is the program that runs between the agent's fork and a user's
// program; images/interpreters/launch.c says what it does. (The agent itself
// in its place took two thirds of a short program's time.)
const launcher = library + "launch"

// step is what that step does before it becomes the program.
type step struct {
	procs string // where it enters its cgroup
	user  User
	// For a caller's program only: how large its files may become, where it
	// starts, as the user, and the descriptor that says why it cannot. An
	// interpreter starts where it is.
	fileSize int64
	cwd      string
	report   int
}

// command is the command line of the step.
func (s step) command(argv []string) []string {
	head := []string{
		launcher, s.procs, strconv.Itoa(s.user.UID), strconv.Itoa(s.user.GID),
		strconv.FormatInt(s.fileSize, 10), strconv.Itoa(s.report), s.cwd,
	}
	return append(head, argv...)
}

// parseFailure reads what the step reports; nil when there is nothing, because
// it became the program.
func parseFailure(text []byte) *Failure {
	if len(text) == 0 {
		return nil
	}
	f := &Failure{Kind: FailedSetup, Message: "the launcher said what nobody understands"}
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

// failures are the launcher's words for why a program cannot be started.
var failures = map[byte]string{
	'n': NotFound, 'x': NotExecutable, 'p': NotPermitted, 'c': NotEntered, 'l': TooLarge, 's': FailedSetup,
}
