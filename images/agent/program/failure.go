package program

// Why a program cannot be started.
const (
	NotFound      = "not-found"      // there is no such program
	NotExecutable = "not-executable" // the file is not a program for this machine
	NotPermitted  = "permission"     // the user may not execute it
	NotEntered    = "cwd"            // the working directory cannot be entered
	TooLarge      = "too-large"      // arguments and environment do not fit
	FailedSetup   = "setup"          // our error: a step before it failed
)

// Failure is why a program could not be started.
type Failure struct {
	Kind    string
	Path    string // the file or directory in question, if known
	Errno   string
	Message string
}
