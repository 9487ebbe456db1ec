package refusals

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shells end with the status of the program that they run.
var shells = map[string]bool{"bash": true, "dash": true, "sh": true, "zsh": true, "busybox": true}

// holder is the process that has a connection open, among the cgroups whose
// lists match a pattern; the latest of several; 0 when there is none.
func holder(pattern string, c Connection) int {
	inode := inodeOf("/proc/net/tcp", c)
	if inode == "" {
		inode = inodeOf("/proc/net/tcp6", c)
	}
	if inode == "" {
		return 0
	}
	lists, _ := filepath.Glob(pattern)
	var pids []int
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
	}
	sort.Sort(sort.Reverse(sort.IntSlice(pids)))
	wanted := "socket:[" + inode + "]"
	for _, pid := range pids {
		if holds(pid, wanted) {
			return pid
		}
	}
	return 0
}

// inodeOf finds a connection in the kernel's list.
func inodeOf(list string, c Connection) string {
	file, err := os.Open(list)
	if err != nil {
		return ""
	}
	defer file.Close()
	local := fmt.Sprintf(":%04X", c.Local)
	// The address is in the machine's byte order; of an IPv6 address it is the
	// last part.
	remote := fmt.Sprintf("%08X:%04X", binary.LittleEndian.Uint32(c.Target[:]), c.Port)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && strings.HasSuffix(fields[1], local) && strings.HasSuffix(fields[2], remote) {
			return fields[9]
		}
	}
	return ""
}

func holds(pid int, wanted string) bool {
	directory := "/proc/" + strconv.Itoa(pid) + "/fd"
	fd, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	opened := os.NewFile(uintptr(fd), directory)
	defer opened.Close()
	names, _ := opened.Readdirnames(-1)
	link := make([]byte, len(wanted)+1)
	for _, name := range names {
		n, err := unix.Readlinkat(fd, name, link)
		if err == nil && string(link[:n]) == wanted {
			return true
		}
	}
	return false
}

// lineOf is a process and its ancestors, without the agent.
func lineOf(pid int) []member {
	var line []member
	for ; pid > 1 && len(line) < maxDepth; pid = parent(pid) {
		program, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
		line = append(line, member{pid, shells[filepath.Base(program)]})
	}
	return line
}

func parent(pid int) int {
	value, _ := status(pid, 1)
	return value
}

// ending reports whether a process is ending, so that the kernel may not have
// reported it yet. That may also be so shortly after it is gone.
func ending(pid, tries int) bool {
	const exiting = 4 // PF_EXITING
	flags, there := status(pid, 6)
	if !there {
		return tries < 5
	}
	return flags&exiting != 0
}

// status reads a number from /proc/PID/stat, by its position after the
// process's state.
func status(pid, field int) (value int, there bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold anything; the fields after it do not.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= field {
		return 0, false
	}
	value, err = strconv.Atoi(string(fields[field]))
	return value, err == nil
}
