// Package process runs the programs that a caller starts by name, besides the
// interpreters: with pipes or a terminal, signals, and one report of their end.
package process

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/changes"
)

// Request is OPEN's payload of the method spawn.
type Request struct {
	Argv        []string          `json:"argv"`
	Shell       *string           `json:"shell"`
	Cwd         *string           `json:"cwd"`
	Env         map[string]string `json:"env"`
	User        string            `json:"user"`
	Pty         *size             `json:"pty"`
	TimeMs      *int64            `json:"timeMs"`
	MemoryBytes *int64            `json:"memoryBytes"`
	Processes   *int              `json:"processes"`

	FileSizeBytes *int64 `json:"fileSizeBytes"` // 0 = no limit

	OutputBytes *int64 `json:"outputBytes"` // of each output
	OutputFail  bool   `json:"outputFail"`  // more than that ends it
	Spill       bool   `json:"spill"`       // more than that goes to a file

	Changes  *changes.Options `json:"changes"`  // what to report; nil: no report
	Survives bool             `json:"survives"` // continues in a copy of the machine
}

// size of a terminal, in characters.
type size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

const maxSize = 10000

func (s size) check() error {
	if s.Cols < 1 || s.Cols > maxSize || s.Rows < 1 || s.Rows > maxSize {
		return fmt.Errorf("a terminal cannot have %d columns and %d rows", s.Cols, s.Rows)
	}
	return nil
}

// Decode reads a request and checks it.
func Decode(payload []byte) (*Request, error) {
	r := &Request{}
	if err := json.Unmarshal(payload, r); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	if (r.Argv == nil) == (r.Shell == nil) {
		return nil, fmt.Errorf("exactly one of argv and shell is needed")
	}
	if r.Shell != nil {
		r.Argv = []string{"/bin/bash", "-c", *r.Shell}
	}
	if len(r.Argv) == 0 {
		return nil, fmt.Errorf("argv is empty")
	}
	for _, word := range r.Argv {
		if strings.ContainsRune(word, 0) {
			return nil, fmt.Errorf("an argument contains a NUL")
		}
	}
	if r.Cwd != nil && (!strings.HasPrefix(*r.Cwd, "/") || strings.ContainsRune(*r.Cwd, 0)) {
		return nil, fmt.Errorf("%q cannot be a working directory", *r.Cwd)
	}
	for name, value := range r.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, fmt.Errorf("%q cannot name an environment variable", name)
		}
		if strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("the environment variable %q contains a NUL", name)
		}
	}
	if r.User != "user" && r.User != "root" {
		return nil, fmt.Errorf("there is no user %q to run as", r.User)
	}
	if r.Pty != nil {
		if err := r.Pty.check(); err != nil {
			return nil, err
		}
	}
	if r.TimeMs != nil && *r.TimeMs < 1 || r.MemoryBytes != nil && *r.MemoryBytes < 1 || r.Processes != nil && *r.Processes < 1 ||
		r.OutputBytes != nil && *r.OutputBytes < 0 {
		return nil, fmt.Errorf("a limit is too small")
	}
	return r, nil
}

func (r *Request) timeout() *time.Duration {
	if r.TimeMs == nil {
		return nil
	}
	d := time.Duration(*r.TimeMs) * time.Millisecond
	return &d
}

// order is what a NOTE of the host asks for. An unknown order is ignored.
type order struct {
	Event  string `json:"event"`
	Signal string `json:"signal"`
	size
}

func parseOrder(payload []byte) (o order, err error) {
	err = json.Unmarshal(payload, &o)
	return o, err
}

// signal is zero, which has no effect, for an unknown name.
func (o order) signal() syscall.Signal { return unix.SignalNum(o.Signal) }
