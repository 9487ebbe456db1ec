package program

import "time"

// Time between asking programs to end and killing them, in steps of which each
// counts once.
const (
	GraceStep  = 50 * time.Millisecond
	graceSteps = 20
	MaxGrace   = graceSteps * GraceStep
)

// Grace returns what is closed once a program has had its time to heed a signal.
// A host that does not let this machine run makes its clock jump; such a jump
// counts as one step, for nothing here could do anything meanwhile.
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
