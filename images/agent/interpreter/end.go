package interpreter

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/evidence"
	"exec-sandbox/agent/program"
)

// How an execution ends whose interpreter lives on; life.go has the other case.

// interrupt sends SIGINT to the whole group, and kills it if it does not stop
// in time.
func (i *interpreter) interrupt() {
	e, p := i.current, i.process
	if !e.interrupted.IsZero() || p == nil {
		return
	}
	e.interrupted, e.grace = time.Now(), program.Grace()
	asked := map[int]string{}
	p.group.Interrupt(asked)
	i.nudge(e, p, asked)
	i.afterGrace(e.grace, func() {
		if i.current == e {
			p.kill()
		}
	})
}

// nudge repeats the interrupt until the execution ends. A SIGINT between an
// interpreter's last check and a system call that waits is not handled before
// that call ends. SIGURG ends the call: python.c and bash.c have a handler for
// it, and it is ignored elsewhere.
func (i *interpreter) nudge(e *execution, p *process, asked map[int]string) {
	i.after(program.GraceStep, func() {
		if i.current == e && i.process == p {
			p.group.Interrupt(asked)
			_ = unix.Tgkill(p.pid, p.pid, unix.SIGURG)
			i.nudge(e, p, asked)
		}
	})
}

// done ends an execution whose interpreter lives on. What the interpreter said
// is the evidence, unless that is in a file. If the interpreter still has the
// pipes open (held), it writes nothing more to them.
func (i *interpreter) done(said string, held bool) {
	e, s, p := i.current, i.running, i.process
	e.stopTimers()
	after := p.group.Spent()
	i.ended = time.Now()
	report := &evidence.Evidence{}
	text, err := []byte(said), error(nil)
	if said == "" {
		s.littered = true
		text, err = s.evidence()
	}
	if err == nil {
		if report, err = evidence.Parse(text); err != nil {
			report = &evidence.Evidence{}
		}
	}
	if err != nil {
		if used, all := i.runner.space(); all > 0 && used == all {
			// User code has filled the file system that the evidence goes to.
			report, err = &evidence.Evidence{}, nil
			report.DiskFull(all, used)
			report.Fill()
		}
	}
	succeeded := err == nil && report.Succeeded()
	if !succeeded {
		p.group.Incidents(&after)
	}
	if err == nil {
		e.measure(report, after)
		report.Storage(i.runner.config.Disk, e.fileSize, e.wasFull)
		report.Refusal(i.runner.config.Refusals, e.refused, p.pid)
	}
	i.handOver(e, s)
	report.Rest = e.endOverflow()
	report.Changes = i.runner.config.Changes.Conclude(e.stream, e.mark, e.request.Changes)
	report.State = "kept"
	if i.lost {
		report.State = "reset"
	}
	if err != nil {
		e.noteStarted() // no END will say so
		e.stream.Reset("failed", "the interpreter left no evidence: "+err.Error())
	} else {
		e.stream.End(report)
	}
	i.current, i.running, i.lost = nil, nil, false
	runtime.Gosched() // the answer leaves before the cleaning up
	if succeeded {
		p.group.Incidents(&after)
	}
	i.last = after
	if e.request.MemoryBytes != nil || e.request.Processes != nil {
		session := i.runner.current()
		_ = p.group.Limit(session.MemoryBytes, session.Processes)
	}
	if s.free(p.group, held) {
		i.slot = s
	} else {
		s.remove()
		i.after(later, func() {
			s.stdout.Follow()
			s.stderr.Follow()
		})
	}
	if !e.interrupted.IsZero() {
		i.sweepLater(e, p)
	}
}

// sweepLater kills what an interrupted execution started and what did not stop
// on SIGINT, but not what other executions left running.
func (i *interpreter) sweepLater(e *execution, p *process) {
	until := cgroup.BootClock()
	i.afterGrace(e.grace, func() {
		if i.process == p {
			p.group.Sweep(e.beganBoot, until, p.pid)
		}
	})
}

// handOver forwards what is in the pipes now as the execution's output, and
// later output as background output.
func (i *interpreter) handOver(e *execution, s *slot) {
	b, id := &i.runner.background, e.stream.ID()
	s.stdout.Drain(b.Sink(e.epoch, id, channel.Stdout))
	s.stderr.Drain(b.Sink(e.epoch, id, channel.Stderr))
}
