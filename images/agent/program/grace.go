package program

import "time"

// Time between asking programs to end and killing them, in steps.
const (
	GraceStep  = 50 * time.Millisecond
	graceSteps = 20
	MaxGrace   = graceSteps * GraceStep
)

// Grace returns a channel that is closed when programs have had their time to
// react to a signal. If the host does not let this machine run, its clock
// jumps; such a jump counts as one step, because no program could run
// meanwhile.
func Grace() <-chan struct{} {
	over := make(chan struct{})
	go func() { // ends by itself
		for n := 0; n < graceSteps; n++ {
			time.Sleep(GraceStep)
		}
		close(over)
	}()
	return over
}
