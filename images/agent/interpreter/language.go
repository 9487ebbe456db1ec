package interpreter

import (
	"os"
	"strings"
)

// Language is what a caller may ask for, and the interpreter that runs it.
type Language struct {
	Name        string
	Interpreter string
}

// Interpreter is how a long-lived interpreter is started; the directory of its
// FIFOs is added as the last argument.
type Interpreter struct {
	Name string
	Argv []string
	// Preload is a library that its process, and no child of it, starts with.
	Preload string
	// Shell says that settings are written as a file to source, not as JSON.
	Shell bool
}

const library = "/usr/lib/exec-sandbox/"

// Interpreters are those of our images.
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

// Installed keeps those whose files are all in this image.
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
