package interpreter

import (
	"fmt"
	"runtime"
	"syscall"
	"time"

	"exec-sandbox/agent/evidence"
)

// The lives of an interpreter: how its process starts, and what the process's
// death means for the execution that was running.

// start starts the interpreter's process.
func (i *interpreter) start() {
	p, err := i.launch(i.runner.current())
	if err != nil {
		i.runner.config.Log("starting %s: %v", i.program.Name, err)
		i.failed(err)
		return
	}
	i.process = p
	i.after(readiness, func() {
		if i.process == p && !p.ready {
			p.kill()
		}
	})
}

// failed counts a start that failed and plans the next.
func (i *interpreter) failed(err error) {
	i.failures++
	if i.failures == maxFailedStarts {
		i.warmed(fmt.Errorf("%s does not start: %w", i.program.Name, err))
	}
	backoff := 100 * time.Millisecond << uint(i.failures)
	if backoff > 10*time.Second {
		backoff = 10 * time.Second
	}
	i.after(backoff, func() {
		if i.process == nil {
			i.start()
		}
	})
}

func (i *interpreter) warmed(err error) {
	select {
	case i.warm <- err:
	default: // the first outcome is already there
	}
}

// died handles the death of the process, and ends the execution that was
// running.
func (i *interpreter) died(status syscall.WaitStatus) {
	p := i.process
	i.process = nil
	p.kill() // its children do not outlive it
	if e := i.current; e != nil {
		e.stopTimers()
		i.endWithDeath(e, p, status)
	} else if p.used {
		i.lost = true
	}
	i.current, i.running, i.failure, i.ended = nil, nil, "", time.Time{}
	if len(i.queue) > 0 && i.queue[0].bound {
		// Part of its input is in the directory that is removed. The host may
		// send it again.
		i.queue[0].stream.Reset("lost", "the interpreter died before the execution began")
		i.skip()
	}
	if i.slot != nil {
		i.slot.discard()
		i.slot = nil
	}
	runtime.Gosched()
	p.close()
	i.cleanUp(p, 0)
	if p.ready {
		i.start()
	} else {
		i.runner.config.Log("%s died before it was ready (wait status %#x)", p.name, uint32(status))
		i.failed(fmt.Errorf("it died with wait status %#x", uint32(status)))
	}
}

func (i *interpreter) endWithDeath(e *execution, p *process, status syscall.WaitStatus) {
	s := i.running
	i.lost = false
	defer s.discard() // everything that could still write was killed
	if i.failure != "" {
		// Nothing that it wrote can be trusted, so none of it is sent.
		e.stream.Reset("failed", i.failure)
		e.endOverflow()
		i.runner.config.Changes.Drop(e.mark)
		return
	}
	report := &evidence.Evidence{}
	if text, err := s.evidence(); err == nil {
		if said, err := evidence.Parse(text); err == nil {
			report = said
		}
	}
	report.FromStatus(status)
	report.Failed = []int{p.pid} // a program that replaced the interpreter has its process id
	e.measure(report, p.group.Counters())
	report.Fill()
	report.State = "reset"
	report.Storage(i.runner.config.Disk, e.fileSize, e.wasFull)
	report.Refusal(i.runner.config.Refusals, e.refused, p.pid)
	i.handOver(e, s)
	report.Rest = e.endOverflow()
	report.Changes = i.runner.config.Changes.Conclude(e.stream, e.mark, e.request.Changes)
	e.stream.End(report)
}

// cleanUp frees what a dead interpreter used, once its last process is gone.
func (i *interpreter) cleanUp(p *process, tries int) {
	if p.remove() || tries == 200 {
		return
	}
	i.after(50*time.Millisecond, func() {
		p.kill()
		i.cleanUp(p, tries+1)
	})
}

// end is for tests; in a machine interpreters end with it.
func (i *interpreter) end() {
	if i.slot != nil {
		i.slot.discard()
	}
	if i.running != nil {
		i.running.discard()
	}
	if i.process != nil {
		i.process.kill()
		<-i.process.exit
		i.process.close()
		i.process.remove()
	}
}
