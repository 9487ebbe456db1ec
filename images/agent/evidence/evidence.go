// Package evidence collects what is known about how a program ended: its
// status, what the interpreter reports, what the kernel counted, and which
// limits were hit.
package evidence

import (
	"encoding/json"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/flat"
	"exec-sandbox/agent/program"
	"exec-sandbox/agent/refusals"
)

// Evidence is END's payload: what is known about how an execution ended.
type Evidence struct {
	ExitCode  *int            `json:"exitCode"`
	Signal    *string         `json:"signal"`
	Exception json.RawMessage `json:"exception"`
	Commands  json.RawMessage `json:"commands"`
	Limits    []Hit           `json:"limits"`
	State     string          `json:"state"`
	Result    json.RawMessage `json:"result"`
	Usage     usage           `json:"usage"`
	Rest      *Rest           `json:"rest,omitempty"`

	// Changes counts what changed; a line for each change was sent before.
	Changes *changes.Summary `json:"changes,omitempty"`

	// Refused is the refused connection that decided the exit code.
	Refused *refusals.Refusal `json:"refused,omitempty"`

	tooLarge bool  // the interpreter saw a write fail at the limit of a file's size
	Failed   []int `json:"-"` // processes whose status is the exit code
}

// Rest names the files with the part of the outputs that the host does not
// keep.
type Rest struct {
	Stdout *string `json:"stdout"`
	Stderr *string `json:"stderr"`
}

// RestOf is nil when there is no such file.
func RestOf(stdout, stderr *string) *Rest {
	if stdout == nil && stderr == nil {
		return nil
	}
	return &Rest{stdout, stderr}
}

// Hit is a limit that was hit: milliseconds, bytes or a count.
type Hit struct {
	Limit    string `json:"limit"`
	Allowed  int64  `json:"allowed"`
	Observed int64  `json:"observed"`
}

type usage struct {
	CPUMs           *float64 `json:"cpuMs"`
	PeakMemoryBytes *int64   `json:"peakMemoryBytes"`
	WallMs          float64  `json:"wallMs"`
}

var (
	null  = json.RawMessage("null")
	empty = json.RawMessage("[]")
)

// Parse reads what the interpreter wrote. User code may have written it, so it
// is trusted only as a claim of the user's code about itself.
func Parse(text []byte) (*Evidence, error) {
	e := &Evidence{}
	if e.usual(text) {
		e.Fill()
		return e, nil
	}
	var said struct {
		ExitCode  *int            `json:"exitCode"`
		Exception json.RawMessage `json:"exception"`
		Commands  json.RawMessage `json:"commands"`
		Result    json.RawMessage `json:"result"`
		TooLarge  bool            `json:"tooLarge"`
		Failed    []int           `json:"failed"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return nil, fmt.Errorf("reading the evidence: %w", err)
	}
	e = &Evidence{ExitCode: said.ExitCode, Exception: said.Exception, Commands: said.Commands, Result: said.Result, tooLarge: said.TooLarge, Failed: said.Failed}
	e.Fill()
	return e, nil
}

// usual reads what most executions leave: an exit code and nothing else, which
// may be written as a number alone.
func (e *Evidence) usual(text []byte) bool {
	if len(text) > 0 && len(text) <= 3 && text[0] != '{' {
		code, err := strconv.ParseUint(string(text), 10, 8)
		short := int(code)
		e.ExitCode = &short
		return err == nil
	}
	return flat.Members(text, func(key string, v flat.Value) bool {
		switch key {
		case "exitCode":
			var code int64
			ok := v.Number(&code)
			short := int(code)
			e.ExitCode = &short
			return ok
		case "exception", "result":
			return v.IsNull()
		case "commands":
			return v.IsEmpty()
		case "tooLarge":
			return v.Bool(&e.tooLarge)
		}
		return false
	})
}

// AppendJSON writes END's payload.
func (e *Evidence) AppendJSON(out []byte) []byte {
	out = append(out, `{"exitCode":`...)
	if e.ExitCode == nil {
		out = append(out, "null"...)
	} else {
		out = strconv.AppendInt(out, int64(*e.ExitCode), 10)
	}
	out = flat.AppendOptional(append(out, `,"signal":`...), e.Signal)
	out = append(append(out, `,"exception":`...), e.Exception...)
	out = append(append(out, `,"commands":`...), e.Commands...)
	out = append(out, `,"limits":[`...)
	for n, l := range e.Limits {
		if n > 0 {
			out = append(out, ',')
		}
		out = flat.AppendText(append(out, `{"limit":`...), l.Limit)
		out = strconv.AppendInt(append(out, `,"allowed":`...), l.Allowed, 10)
		out = strconv.AppendInt(append(out, `,"observed":`...), l.Observed, 10)
		out = append(out, '}')
	}
	out = flat.AppendText(append(out, `],"state":`...), e.State)
	out = append(append(out, `,"result":`...), e.Result...)
	out = append(out, `,"usage":{"cpuMs":`...)
	if e.Usage.CPUMs == nil {
		out = append(out, "null"...)
	} else {
		out = strconv.AppendFloat(out, *e.Usage.CPUMs, 'f', -1, 64)
	}
	out = append(out, `,"peakMemoryBytes":`...)
	if e.Usage.PeakMemoryBytes == nil {
		out = append(out, "null"...)
	} else {
		out = strconv.AppendInt(out, *e.Usage.PeakMemoryBytes, 10)
	}
	out = strconv.AppendFloat(append(out, `,"wallMs":`...), e.Usage.WallMs, 'f', -1, 64)
	out = append(out, '}')
	if e.Rest != nil {
		out = flat.AppendOptional(append(out, `,"rest":{"stdout":`...), e.Rest.Stdout)
		out = flat.AppendOptional(append(out, `,"stderr":`...), e.Rest.Stderr)
		out = append(out, '}')
	}
	if e.Refused != nil {
		refused, _ := json.Marshal(e.Refused)
		out = append(append(out, `,"refused":`...), refused...)
	}
	if e.Changes != nil {
		// Rare, so it may be slow; it cannot fail because it has only numbers.
		counts, _ := json.Marshal(e.Changes)
		out = append(append(out, `,"changes":`...), counts...)
	}
	return append(out, '}')
}

// Succeeded reports whether there is no sign of a failure.
func (e *Evidence) Succeeded() bool {
	return e.ExitCode != nil && *e.ExitCode == 0 && string(e.Exception) == string(null)
}

// Fill sets the fields that are missing, and leaves out what does not fit one
// frame.
func (e *Evidence) Fill() {
	const most = channel.MaxPayload - 16<<10 // for the rest of the fields
	total := 0
	for _, f := range []struct {
		field *json.RawMessage
		none  json.RawMessage
	}{{&e.Exception, null}, {&e.Commands, empty}, {&e.Result, null}} {
		if len(*f.field) == 0 || string(*f.field) == "null" || total+len(*f.field) > most {
			*f.field = f.none
		}
		total += len(*f.field)
	}
	if e.Limits == nil {
		e.Limits = []Hit{}
	}
}

// FromStatus sets the exit code and the signal of a process that ended.
func (e *Evidence) FromStatus(status syscall.WaitStatus) {
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
		name := unix.SignalName(status.Signal())
		if name == "" {
			name = fmt.Sprintf("SIG%d", int(status.Signal()))
		}
		e.Signal = &name
	}
	e.ExitCode = &code
}

// Ran sets how long it ran.
func (e *Evidence) Ran(wall time.Duration) { e.Usage.WallMs = milliseconds(wall) }

// TimedOut adds the time limit, which was hit after some time.
func (e *Evidence) TimedOut(limit, after time.Duration) {
	e.Limits = append(e.Limits, Hit{"time", limit.Milliseconds(), after.Milliseconds()})
}

// Count adds usage and limits from what the kernel counted between two
// readings.
func (e *Evidence) Count(before, after cgroup.Counters) {
	if before.CPUMicros >= 0 && after.CPUMicros >= before.CPUMicros {
		cpu := float64(after.CPUMicros-before.CPUMicros) / 1000
		e.Usage.CPUMs = &cpu
	}
	if after.PeakBytes >= 0 {
		peak := after.PeakBytes
		e.Usage.PeakMemoryBytes = &peak
	}
	if before.OOMKills >= 0 && after.OOMKills > before.OOMKills {
		peak := after.PeakBytes
		if peak < 0 {
			peak = after.MaxBytes
		}
		e.Limits = append(e.Limits, Hit{"memory", after.MaxBytes, peak})
	}
	if before.TasksAtMax >= 0 && after.TasksAtMax > before.TasksAtMax {
		e.Limits = append(e.Limits, Hit{"processes", after.MaxTasks, after.MaxTasks})
	}
}

// DiskFull adds the size of a full file system as a limit.
func (e *Evidence) DiskFull(allowed, used int64) {
	e.Limits = append(e.Limits, Hit{"disk", allowed, used})
}

// Storage adds the limits that writing hit. A full disk counts only when an
// exception reports it, or when this task filled the disk and failed.
func (e *Evidence) Storage(d *disk.Disk, fileSize int64, wasFull bool) {
	var exception struct {
		Errno *string `json:"errno"`
		Path  *string `json:"path"`
	}
	if string(e.Exception) != string(null) {
		_ = json.Unmarshal(e.Exception, &exception)
	}
	errno := ""
	if exception.Errno != nil {
		errno = *exception.Errno
	}
	if fileSize > 0 && (errno == "EFBIG" || e.tooLarge || e.Signal != nil && *e.Signal == "SIGXFSZ") {
		// The kernel allows exactly this size.
		e.Limits = append(e.Limits, Hit{"file-size", fileSize, fileSize})
	}
	switch {
	case errno == "ENOSPC" || errno == "EDQUOT":
		if allowed, used, ok := d.SpaceFor(exception.Path); ok {
			e.DiskFull(allowed, used)
		}
	case e.ExitCode != nil && *e.ExitCode != 0 && !wasFull && d.IsFull():
		allowed, used, _ := d.Space()
		e.DiskFull(allowed, used)
	}
}

// Refusal adds the refused connection because of which the execution failed, if
// there is one. It looks only at programs that the interpreter ran: the
// interpreter reports its own as exceptions.
func (e *Evidence) Refusal(t *refusals.Tracker, mark uint64, interpreter int) {
	if t.Mark() == mark || e.ExitCode == nil || *e.ExitCode == 0 {
		return
	}
	cause := refusals.Cause{Processes: e.Failed, Status: *e.ExitCode}
	if string(e.Exception) != string(null) {
		var exception struct {
			ChildStatus *int `json:"childStatus"`
		}
		if json.Unmarshal(e.Exception, &exception) != nil || exception.ChildStatus == nil {
			return
		}
		cause = refusals.Cause{Parent: interpreter, Status: *exception.ChildStatus}
		if cause.Status < 0 { // a signal
			cause.Status = 128 - cause.Status
		}
	}
	e.Refused = t.Decided(mark, cause)
}

// Explain makes it the evidence of a program that could not be started. It
// returns false for a reason that evidence cannot express.
func (e *Evidence) Explain(name string, f *program.Failure) bool {
	code := 126
	switch f.Kind {
	case program.NotFound, program.NotExecutable, program.NotPermitted:
		if f.Errno == "ENOENT" || f.Kind == program.NotFound {
			code = 127
		}
		var path *string
		if f.Path != "" {
			path = &f.Path
		}
		e.Commands, _ = json.Marshal([]struct {
			Name string  `json:"name"`
			Kind string  `json:"kind"`
			Path *string `json:"path"`
		}{{name, f.Kind, path}})
	case program.NotEntered:
		if f.Errno != "EACCES" && f.Errno != "EPERM" {
			return false
		}
		e.Exception, _ = json.Marshal(map[string]any{
			"type": "OSError", "message": f.Message, "traceback": "", "errno": f.Errno, "path": f.Path, "module": nil, "code": nil,
		})
	default:
		return false
	}
	e.ExitCode, e.Signal = &code, nil
	e.Fill()
	return true
}

// milliseconds, to the microsecond.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
