package run

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

// Why a program cannot be started.
const (
	NotFound      = "not-found"      // there is no such program
	NotExecutable = "not-executable" // the file is no program for this machine
	NotPermitted  = "permission"     // the user may not execute it
	NotEntered    = "cwd"            // the working directory cannot be entered
	TooLarge      = "too-large"      // arguments and environment do not fit
	FailedSetup   = "setup"          // ours: a step before it failed
)

// Failure is why a program could not be started.
type Failure struct {
	Kind    string `json:"kind"`
	Path    string `json:"path"` // the file or directory in question, if known
	Errno   string `json:"errno"`
	Message string `json:"message"`
}

// write sends it in one piece to whoever started us.
func (f *Failure) write(fd int) {
	if text, err := json.Marshal(f); err == nil {
		_, _ = quick.Write(fd, text)
	}
}

func failed(kind, path string, err error) *Failure {
	f := &Failure{Kind: kind, Path: path, Message: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		f.Errno = unix.ErrnoName(errno)
	}
	return f
}

// become replaces this process by a program, found in PATH like a shell does
// but never given to one. It returns only with the reason why it could not.
func become(cwd string, argv []string) *Failure {
	if err := unix.Chdir(cwd); err != nil {
		return failed(NotEntered, cwd, err)
	}
	name, env := argv[0], os.Environ()
	if name == "" {
		return failed(NotFound, "", unix.ENOENT)
	}
	if strings.Contains(name, "/") {
		return refusal(name, syscall.Exec(name, argv, env))
	}
	var denied *Failure
	for _, directory := range strings.Split(os.Getenv("PATH"), ":") {
		if directory == "" {
			directory = "."
		}
		path := directory + "/" + name
		f := refusal(path, syscall.Exec(path, argv, env))
		switch {
		case f.Kind == NotFound:
		case f.Errno == "EACCES": // another directory may have one that is allowed
			if denied == nil {
				denied = f
			}
		default:
			return f
		}
	}
	if denied != nil {
		return denied
	}
	return failed(NotFound, "", unix.ENOENT)
}

// refusal says what the kernel's refusal to execute a file means.
func refusal(path string, err error) *Failure {
	var file unix.Stat_t
	unseen := unix.Stat(path, &file)
	switch err {
	case unix.ENOENT:
		if unseen == nil { // its own interpreter is what is missing
			return failed(NotExecutable, path, err)
		}
		return failed(NotFound, "", err)
	case unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG:
		return failed(NotFound, "", err)
	case unix.EACCES, unix.EPERM:
		if unseen == nil && file.Mode&unix.S_IFMT != unix.S_IFREG {
			return failed(NotExecutable, path, err)
		}
		return failed(NotPermitted, path, err)
	case unix.E2BIG:
		return failed(TooLarge, "", err)
	}
	return failed(NotExecutable, path, err)
}
