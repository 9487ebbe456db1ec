// Package cgroup limits, counts, signals and kills groups of processes: one
// group for each interpreter and each program, below one for all of them.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

// reserve is the memory for the kernel and the agent, in bytes. User code
// reaches its cgroup's limit before the whole machine runs out.
const reserve = 48 << 20

// Sandbox is the cgroup above everything that users run.
type Sandbox struct {
	root string
	max  int64
}

// New makes the sandbox's cgroup below the mounted cgroup2 hierarchy.
func New(hierarchy string) (*Sandbox, error) {
	root := filepath.Join(hierarchy, "sandbox")
	if err := os.Mkdir(root, 0o755); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("making the sandbox's cgroup: %w", err)
	}
	// The processor is shared by group between users and the agent, but by
	// thread among users: each level of groups makes every switch slower.
	for _, enable := range []struct{ directory, controllers string }{{hierarchy, "+memory +pids +cpu"}, {root, "+memory +pids"}} {
		if err := os.WriteFile(filepath.Join(enable.directory, "cgroup.subtree_control"), []byte(enable.controllers), 0); err != nil {
			return nil, fmt.Errorf("enabling cgroup controllers: %w", err)
		}
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("reading the size of memory: %w", err)
	}
	max := int64(info.Totalram)*int64(info.Unit) - reserve
	if max < reserve {
		max = reserve
	}
	if err := os.WriteFile(filepath.Join(root, "memory.max"), []byte(strconv.FormatInt(max, 10)), 0); err != nil {
		return nil, fmt.Errorf("limiting the sandbox's memory: %w", err)
	}
	_ = os.WriteFile(filepath.Join(root, "memory.swap.max"), []byte("0"), 0) // the file is absent without swap
	return &Sandbox{root: root, max: max}, nil
}

// Group is one cgroup.
type Group struct {
	path    string
	sandbox *Sandbox
	memory  int64 // limit in bytes, 0 = the sandbox's
	tasks   int
	file    int64 // the largest file that a process may write, in bytes, 0 = any

	// Open all the time: they are read before and after every execution.
	cpuStat, memoryPeak, memoryEvents, pidsEvents, pidsCurrent int
	text                                                       [1024]byte // what was read last
}

// Group makes a cgroup.
func (s *Sandbox) Group(name string) (*Group, error) {
	g := &Group{
		path: filepath.Join(s.root, name), sandbox: s,
		cpuStat: -1, memoryPeak: -1, memoryEvents: -1, pidsEvents: -1, pidsCurrent: -1,
	}
	if err := os.Mkdir(g.path, 0o755); err != nil {
		return nil, fmt.Errorf("making a cgroup: %w", err)
	}
	if err := g.open(); err != nil {
		g.Remove()
		return nil, err
	}
	return g, nil
}

func (g *Group) open() error {
	if err := g.write("memory.oom.group", "1"); err != nil {
		return err
	}
	_ = g.write("memory.swap.max", "0")
	for _, f := range []struct {
		fd   *int
		name string
		mode int
	}{
		{&g.cpuStat, "cpu.stat", unix.O_RDONLY},
		{&g.memoryPeak, "memory.peak", unix.O_RDWR},
		{&g.memoryEvents, "memory.events", unix.O_RDONLY},
		{&g.pidsEvents, "pids.events", unix.O_RDONLY},
		{&g.pidsCurrent, "pids.current", unix.O_RDONLY},
	} {
		fd, err := unix.Open(filepath.Join(g.path, f.name), f.mode|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EACCES) { // memory.peak of a kernel before 6.12
			fd, err = unix.Open(filepath.Join(g.path, f.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return fmt.Errorf("opening %s: %w", f.name, err)
		}
		*f.fd = fd
	}
	return nil
}

func (g *Group) write(name, value string) error {
	if err := os.WriteFile(filepath.Join(g.path, name), []byte(value), 0); err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	return nil
}

// Procs is the file to which a process writes in order to enter the group.
func (g *Group) Procs() string { return filepath.Join(g.path, "cgroup.procs") }

// Limit sets what the processes may use together; 0 is no limit of its own.
func (g *Group) Limit(memoryBytes int64, processes int) error {
	if memoryBytes != g.memory {
		value := "max"
		if memoryBytes > 0 {
			value = strconv.FormatInt(memoryBytes, 10)
		}
		if err := g.write("memory.max", value); err != nil {
			return err
		}
		g.memory = memoryBytes
	}
	if processes != g.tasks {
		value := "max"
		if processes > 0 {
			value = strconv.Itoa(processes)
		}
		if err := g.write("pids.max", value); err != nil {
			return err
		}
		g.tasks = processes
	}
	return nil
}

// LimitFiles sets how large a file each process may write, in bytes; 0 is no
// limit.
func (g *Group) LimitFiles(bytes int64) {
	if bytes == g.file {
		return
	}
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if bytes > 0 {
		limit = unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}
	}
	for _, pid := range g.Members() {
		_ = unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil) // a process that is gone needs no limit
	}
	g.file = bytes
}

// Begin starts the counting of an execution.
func (g *Group) Begin() {
	// Any write starts a new peak, for this descriptor alone.
	_ = quick.WriteStart(g.memoryPeak, []byte("r"))
}

// Counters reads all counters.
func (g *Group) Counters() Counters {
	c := g.Spent()
	g.Incidents(&c)
	return c
}

// Incidents adds the counters that matter only after a failure.
func (g *Group) Incidents(c *Counters) {
	c.OOMKills, c.TasksAtMax = g.field(g.memoryEvents, "oom_kill "), g.field(g.pidsEvents, "max ")
}

// Spent reads the counters that every execution reports.
func (g *Group) Spent() Counters {
	c := Counters{
		CPUMicros:  g.field(g.cpuStat, "usage_usec "),
		PeakBytes:  g.field(g.memoryPeak, ""),
		OOMKills:   -1,
		TasksAtMax: -1,
		MaxBytes:   g.memory,
		MaxTasks:   int64(g.tasks),
	}
	if c.MaxBytes == 0 || c.MaxBytes > g.sandbox.max {
		c.MaxBytes = g.sandbox.max
	}
	return c
}

// Alone reports whether there is exactly one thread in the group.
func (g *Group) Alone() bool { return g.field(g.pidsCurrent, "") == 1 }

// field reads the number after a key at the start of a line, or -1.
func (g *Group) field(fd int, key string) int64 {
	n, err := quick.ReadStart(fd, g.text[:])
	if err != nil {
		return -1
	}
	return parseField(g.text[:n], key)
}

func parseField(text []byte, key string) int64 {
	for len(text) > 0 {
		line := text
		if at := bytes.IndexByte(text, '\n'); at >= 0 {
			line, text = text[:at], text[at+1:]
		} else {
			text = nil
		}
		if !bytes.HasPrefix(line, []byte(key)) {
			continue
		}
		value, err := strconv.ParseInt(string(line[len(key):]), 10, 64)
		if err != nil {
			return -1
		}
		return value
	}
	return -1
}

// Members are the ids of the processes in the group.
func (g *Group) Members() []int {
	text, err := os.ReadFile(filepath.Join(g.path, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Signal signals every process in the group.
func (g *Group) Signal(sig syscall.Signal) {
	for _, pid := range g.Members() {
		_ = unix.Kill(pid, sig)
	}
}

// Interrupt sends SIGINT to every process, and notes in asked which program each
// one ran. Called with such notes, it signals only the processes that run
// another program since: the old one handled a signal that came before.
func (g *Group) Interrupt(asked map[int]string) {
	first := len(asked) == 0
	for _, pid := range g.Members() {
		program := programOf(pid)
		if before, known := asked[pid]; first || known && before != program {
			_ = unix.Kill(pid, unix.SIGINT)
			asked[pid] = program
		}
	}
}

// Sweep kills the processes that started between two readings of BootClock,
// except one.
func (g *Group) Sweep(from, to float64, except int) {
	for _, pid := range g.Members() {
		if pid == except {
			continue
		}
		if started, ok := startTime(pid); ok && started >= from && started <= to {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// Kill ends every process in the group at once.
func (g *Group) Kill() { _ = g.write("cgroup.kill", "1") }

// Remove removes the group; false while a process in it is still ending.
func (g *Group) Remove() bool {
	err := unix.Rmdir(g.path)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false
	}
	for _, fd := range []int{g.cpuStat, g.memoryPeak, g.memoryEvents, g.pidsEvents, g.pidsCurrent} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	return true
}

// Counters are cumulative, except the peak, which is since Begin. A value that
// the kernel does not report is -1.
type Counters struct {
	CPUMicros  int64
	PeakBytes  int64
	MaxBytes   int64
	OOMKills   int64
	MaxTasks   int64
	TasksAtMax int64
}

// Unknown are the counters when the kernel reports none.
var Unknown = Counters{-1, -1, -1, -1, -1, -1}

// ticks per second of the times in /proc, the same on every architecture.
const ticks = 100

// stat returns fields of /proc/PID/stat, counted from the state; nil for a
// process that is gone.
func stat(pid, least int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// The name, in parentheses, may hold anything; the fields after it do not.
	at := bytes.LastIndexByte(text, ')')
	if fields := strings.Fields(string(text[at+1:])); at >= 0 && len(fields) >= least {
		return fields
	}
	return nil
}

// startTime is when a process started, in seconds of the boot clock.
func startTime(pid int) (float64, bool) {
	const starttime = 19
	fields := stat(pid, starttime+1)
	if fields == nil {
		return 0, false
	}
	value, err := strconv.ParseInt(fields[starttime], 10, 64)
	return float64(value) / ticks, err == nil
}

// programOf identifies the program that a process runs at present: each has its
// own addresses of code and stack.
func programOf(pid int) string {
	const startcode, startstack = 23, 25
	fields := stat(pid, startstack+1)
	if fields == nil {
		return ""
	}
	return strings.Join(fields[startcode:startstack+1], " ")
}

// BootClock is now, in seconds and rounded down to the ticks of startTime.
func BootClock() float64 {
	return float64(quick.BootClock()/(1e9/ticks)) / ticks
}
