package interpreter

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/flat"
)

// maxCode limits the code of one execution, in bytes, as the host does.
const maxCode = 16 << 20

// Request is OPEN's payload of the method exec.
type Request struct {
	Language    string            `json:"language"`
	CodeBytes   *int64            `json:"codeBytes"`
	StdinBytes  *int64            `json:"stdinBytes"`
	Env         map[string]string `json:"env"`
	Cwd         *string           `json:"cwd"`
	TimeMs      *int64            `json:"timeMs"`
	MemoryBytes *int64            `json:"memoryBytes"`
	Processes   *int              `json:"processes"`

	FileSizeBytes *int64 `json:"fileSizeBytes"` // 0 = no limit
	OutputBytes   *int64 `json:"outputBytes"`   // of each output
	OutputFail    bool   `json:"outputFail"`    // more than that interrupts it
	Spill         bool   `json:"spill"`         // more than that goes to a file

	Changes *changes.Options `json:"changes"` // what to report; nil: no report

	Rehearsal bool `json:"rehearsal"` // the host's own code, which leaves no state behind
}

// Decode reads a request and checks it.
func Decode(payload []byte) (*Request, error) {
	r := &Request{}
	if !r.usual(payload) {
		*r = Request{}
		if err := json.Unmarshal(payload, r); err != nil {
			return nil, fmt.Errorf("reading the request: %w", err)
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

// usual reads the request of nearly every execution.
func (r *Request) usual(payload []byte) bool {
	return flat.Members(payload, func(key string, v flat.Value) bool {
		switch key {
		case "method":
			return string(v) == `"exec"`
		case "language":
			return v.Text(&r.Language)
		case "cwd":
			r.Cwd = new(string)
			return v.Text(r.Cwd)
		case "codeBytes":
			return number(v, &r.CodeBytes)
		case "stdinBytes":
			return number(v, &r.StdinBytes)
		case "timeMs":
			return number(v, &r.TimeMs)
		case "memoryBytes":
			return number(v, &r.MemoryBytes)
		case "outputBytes":
			return number(v, &r.OutputBytes)
		case "spill":
			return v.Bool(&r.Spill)
		case "rehearsal":
			return v.Bool(&r.Rehearsal)
		}
		return false
	})
}

func number(v flat.Value, to **int64) bool {
	*to = new(int64)
	return v.Number(*to)
}

// check returns why it cannot be executed.
func (r *Request) check() error {
	for name, value := range r.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("%q cannot name an environment variable", name)
		}
		if strings.ContainsRune(value, 0) {
			return fmt.Errorf("the environment variable %q contains a NUL", name)
		}
	}
	if r.Cwd != nil && (*r.Cwd == "" || strings.ContainsRune(*r.Cwd, 0)) {
		return fmt.Errorf("%q cannot be a working directory", *r.Cwd)
	}
	for _, n := range []struct {
		name  string
		value *int64
		least int64
	}{
		{"codeBytes", r.CodeBytes, 0}, {"stdinBytes", r.StdinBytes, 0},
		{"timeMs", r.TimeMs, 1}, {"memoryBytes", r.MemoryBytes, 1},
		{"fileSizeBytes", r.FileSizeBytes, 0}, {"outputBytes", r.OutputBytes, 0},
	} {
		if n.value != nil && *n.value < n.least {
			return fmt.Errorf("%s cannot be %d", n.name, *n.value)
		}
	}
	if r.Processes != nil && *r.Processes < 1 {
		return fmt.Errorf("processes cannot be %d", *r.Processes)
	}
	if r.CodeBytes != nil && *r.CodeBytes > maxCode {
		return fmt.Errorf("the code has %d bytes, more than %d", *r.CodeBytes, maxCode)
	}
	return nil
}

// timeout is zero when there is no time limit.
func (r *Request) timeout() time.Duration {
	if r.TimeMs == nil {
		return 0
	}
	return time.Duration(*r.TimeMs) * time.Millisecond
}
