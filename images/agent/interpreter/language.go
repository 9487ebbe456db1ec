package interpreter

import (
	"os"
	"strings"
)

// Language is a language that the host may ask for, and the interpreter that
// runs it.
type Language struct {
	Name        string
	Interpreter string
}

// Interpreter is how a long-lived interpreter is started; the directory of its
// FIFOs is added as the last argument.
type Interpreter struct {
	Name string
	Argv []string
	// Preload is a library for LD_PRELOAD in its process, but not in its
	// children.
	Preload string
	// Shell says that settings are written as assignments to evaluate, not as
	// fields.
	Shell bool
}

const library = "/usr/lib/exec-sandbox/"

// Interpreters are the ones in our images.
var Interpreters = []Interpreter{
	{Name: "python", Argv: []string{"/usr/bin/python3", library + "python.py"}, Preload: library + "python.so"},
	{Name: "javascript", Argv: []string{"/usr/bin/node", "--expose-internals", "--no-warnings", "--no-flush-bytecode", "--single-threaded-gc", library + "javascript.mjs"}},
	{Name: "bash", Argv: []string{"/usr/bin/bash", library + "bash.sh"}, Shell: true},
}

// Languages in the order in which they are announced.
var Languages = []Language{
	{"python", "python"},
	{"javascript", "javascript"},
	{"typescript", "javascript"},
	{"bash", "bash"},
}

// Installed returns those whose files are all in this image.
func Installed(all []Interpreter) []Interpreter {
	var found []Interpreter
	for _, i := range all {
		present := true
		for _, path := range append([]string{i.Preload}, i.Argv...) {
			if !strings.HasPrefix(path, "/") {
				continue
			}
			if _, err := os.Stat(path); err != nil {
				present = false
			}
		}
		if present {
			found = append(found, i)
		}
	}
	return found
}
