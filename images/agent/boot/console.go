// Package boot sets the machine up, from the kernel's first process to a
// locked-down root file system, and powers it off.
package boot

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Log writes a milestone to the kernel's log, which reaches the console of a
// machine started without "quiet".
func Log(format string, args ...any) { kernelLog(6, fmt.Sprintf(format, args...)) }

// Fatal logs why the machine cannot continue, and powers it off.
func Fatal(err error) {
	line := "exec-sandbox: fatal: " + strings.ReplaceAll(err.Error(), "\n", " ")
	kernelLog(1, line)
	PowerOff()
}

func kernelLog(level int, line string) {
	if !strings.HasPrefix(line, "exec-sandbox: ") {
		line = "exec-sandbox: " + line
	}
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil { // /dev is not mounted yet, or this is not our virtual machine
		fmt.Fprintln(os.Stderr, line)
		return
	}
	defer kmsg.Close()
	fmt.Fprintf(kmsg, "<%d>%s\n", level, line)
}

// Debug reports whether the kernel command line asks for interpreters' own
// error output on the console.
func Debug() bool {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return false
	}
	for _, word := range strings.Fields(string(line)) {
		if word == "exec-sandbox.debug" {
			return true
		}
	}
	return false
}

// standardDescriptors opens 0, 1 and 2, which the kernel leaves closed when the
// initramfs has no console, so that no other file gets these numbers.
func standardDescriptors() error {
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("opening /dev/null: %w", err)
		}
		if fd > 2 {
			return unix.Close(fd)
		}
	}
}

// logCrashes makes the console the agent's standard error: the stack trace is the
// only way to find the cause of a crash. Programs get descriptors of their own.
func logCrashes() {
	fd, err := unix.Open("/dev/console", unix.O_WRONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // this machine has no console
	}
	_ = unix.Dup3(fd, 2, 0)
	_ = unix.Close(fd)
}
