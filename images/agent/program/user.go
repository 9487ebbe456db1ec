// Package program starts processes: as which user, with what environment, in
// which cgroup, and why one could not be started. It also collects their exits.
package program

import "sort"

// User is the user that a program runs as.
type User struct {
	UID, GID int
	Name     string
	Home     string
}

// Root is for programs that a caller runs with every privilege in the machine.
// The machine is the boundary.
var Root = User{Name: "root", Home: "/root"}

// Environment is what every program starts with; the session's variables
// override the usual ones.
func Environment(user User, session map[string]string) []string {
	env := map[string]string{
		"HOME":    user.Home,
		"USER":    user.Name,
		"LOGNAME": user.Name,
		"SHELL":   "/bin/bash",
		"LANG":    "C.UTF-8",
		"PATH":    user.Home + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
	for name, value := range session {
		env[name] = value
	}
	return Pairs(env)
}

// Pairs is an environment as execve takes it, in a stable order.
func Pairs(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return out
}

// Defaults are what a program gets from the session unless its request says
// otherwise.
type Defaults struct {
	Env           map[string]string
	MemoryBytes   int64 // for a program and all that it starts; 0 = as much as there is
	Processes     int   // of a program and all that it starts; 0 = any number
	FileSizeBytes int64 // for each file; 0 = any size
}
