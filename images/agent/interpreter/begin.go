package interpreter

import (
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/identity"
	"exec-sandbox/agent/output"
	"exec-sandbox/agent/program"
)

// How an interpreter is given an execution, until it runs.

// begin hands an execution to the interpreter.
func (i *interpreter) begin(e *execution) {
	p, session := i.process, i.runner.current()
	i.current, i.running, i.slot = e, i.slot, nil
	i.direct(e, i.running)
	memory := session.MemoryBytes
	if e.request.MemoryBytes != nil {
		memory = *e.request.MemoryBytes
	}
	processes := session.Processes
	if e.request.Processes != nil {
		processes = *e.request.Processes
	}
	if memory != session.MemoryBytes || processes != session.Processes {
		i.runner.noteOwnLimits()
	}
	e.fileSize = session.FileSizeBytes
	if e.request.FileSizeBytes != nil {
		e.fileSize = *e.request.FileSizeBytes
	}
	e.wasFull = i.runner.config.Disk.IsFull()
	e.refused = i.runner.config.Refusals.Mark()
	if e.request.Changes != nil {
		e.mark = i.runner.config.Changes.Mark()
	}
	// Lowering the limit below what is in use kills the interpreter; that
	// counts as a limit that this execution hit, so counting starts before.
	e.ordered, e.beganBoot = time.Now(), cgroup.BootClock()
	e.before = i.last
	if p.group.Begin(); e.ordered.Sub(i.ended) > later {
		e.before = p.group.Counters()
	}
	i.sequence++
	s := settings{
		Language: e.request.Language, Env: merge(session.Env, e.request.Env), Cwd: e.request.Cwd,
		Stdin: i.running.stdin >= 0, Rehearsal: e.request.Rehearsal,
	}
	if p.generation != session.generation {
		fresh := hex.EncodeToString(identity.Derive(session.Secret, "interpreter "+p.name))
		s.Entropy = &fresh
		e.reseed = true
	}
	line, err := i.order(s, e.code, i.sequence)
	if err == nil {
		err = p.group.Limit(memory, processes)
	}
	if err == nil {
		p.group.LimitFiles(e.fileSize)
	}
	if err == nil {
		err = p.order(line)
	}
	if report := i.diskFull(err); report != nil {
		i.runner.config.Changes.Drop(e.mark)
		e.endOverflow()
		e.stream.End(report)
		i.running.discard()
		i.current, i.running = nil, nil
		return
	}
	if err != nil {
		i.fail("sending the execution: " + err.Error())
		return
	}
	p.used = true
	p.generation = session.generation
	if !e.reseed {
		i.startedNow()
		return
	}
	wait := acknowledgement
	if e.request.timeout() > 0 {
		wait = e.request.timeout() + program.MaxGrace
	}
	e.timer = i.after(wait, func() {
		if i.current == e && !e.started && e.interrupted.IsZero() {
			e.timedOut = e.request.timeout() > 0
			p.kill()
		}
	})
}

// diskFull is the evidence of an execution that could not begin because users
// have filled the file system that its input goes to; nil for any other error,
// or none.
func (i *interpreter) diskFull(err error) *evidence.Evidence {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return nil
	}
	allowed, used, ok := i.runner.config.Disk.SpaceFor(nil)
	if !ok {
		used, allowed = i.runner.space()
	}
	report := &evidence.Evidence{State: "kept"}
	report.DiskFull(allowed, used)
	if i.lost {
		report.State, i.lost = "reset", false
	}
	report.Fill()
	return report
}

// order makes the message that tells the interpreter to run an execution. What
// does not fit in it goes to files in the slot.
func (i *interpreter) order(s settings, code []byte, sequence int) ([]byte, error) {
	line := append(make([]byte, 0, 512), "exec "...)
	line = append(strconv.AppendInt(line, int64(sequence), 10), ' ')
	line = append(append(line, i.running.name...), '\n')
	head := len(line)
	if i.running.code < 0 {
		if canHold(code) {
			if s.Code = code; code == nil {
				s.Code = []byte{} // empty code has no file, either
			}
			if line = s.encode(line, i.program.Shell); len(line) <= maxLine {
				return line, nil
			}
			s.Code, line = nil, line[:head]
		}
		if err := i.running.write("code", code); err != nil {
			return nil, err
		}
	}
	if line = s.encode(line, i.program.Shell); len(line) <= maxLine {
		return line, nil
	}
	name := "settings"
	if i.program.Shell {
		name = "settings.sh"
	}
	return line[:head], i.running.write(name, line[head:])
}

// acknowledged is called when the interpreter reports that it has started an
// execution that came with fresh entropy.
func (i *interpreter) acknowledged(reseeded bool) {
	if !reseeded {
		i.fail("the interpreter did not use fresh entropy")
		return
	}
	i.current.timer.Stop()
	i.startedNow()
}

// startedNow starts the execution's time.
func (i *interpreter) startedNow() {
	e := i.current
	e.started, e.began = true, time.Now()
	s := i.running
	e.quiet = i.after(briefly, func() {
		if i.current == e {
			i.live(e, s, briefly)
		}
	})
	if e.request.timeout() > 0 {
		e.timer = i.after(e.request.timeout(), func() {
			if i.current == e && e.interrupted.IsZero() {
				e.timedOut = true
				i.interrupt()
			}
		})
	}
}

// live begins to send the output of an execution that is not over at once.
func (i *interpreter) live(e *execution, s *slot, wait time.Duration) {
	e.noteStarted()
	out, err := s.stdout.Attend(), s.stderr.Attend()
	if out && err {
		return
	}
	// The interpreter has not opened them yet, or user code closed one.
	if wait *= 2; wait > maxWait {
		wait = maxWait
	}
	e.quiet = i.after(wait, func() {
		if i.current == e {
			i.live(e, s, wait)
		}
	})
}

// watch forwards one output of an execution, and interrupts the execution at
// its output limit if the host wants that.
func (i *interpreter) watch(e *execution, sub byte, o *output.Overflow) func(payload []byte) {
	var total int64
	noticed := e.request.OutputBytes == nil || !e.request.OutputFail
	return func(payload []byte) {
		o.Write(payload)
		total += int64(len(payload))
		if !noticed && total > *e.request.OutputBytes {
			noticed = true
			i.post(func() {
				if i.current == e && e.interrupted.IsZero() {
					i.interrupt()
				}
			})
		}
		e.stream.Send(sub, payload)
	}
}

// direct connects the outputs of an execution to its stream.
func (i *interpreter) direct(e *execution, s *slot) {
	for n, name := range [...]string{"stdout", "stderr"} {
		e.overflow[n] = i.runner.config.Outputs.Overflow(e.stream.ID(), name, e.request.OutputBytes, e.request.Spill)
	}
	s.stdout.Drain(i.watch(e, channel.Stdout, e.overflow[0]))
	s.stderr.Drain(i.watch(e, channel.Stderr, e.overflow[1]))
}

func merge(base, over map[string]string) map[string]string {
	if len(base) == 0 {
		return over
	}
	out := make(map[string]string, len(base)+len(over))
	for name, value := range base {
		out[name] = value
	}
	for name, value := range over {
		out[name] = value
	}
	return out
}
