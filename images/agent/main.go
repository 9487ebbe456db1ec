// The agent is the first process of an exec-sandbox machine and the guest's end
// of the channel to the host.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"exec-sandbox/agent/boot"
	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/egress"
	"exec-sandbox/agent/files"
	"exec-sandbox/agent/interpreter"
	"exec-sandbox/agent/output"
	"exec-sandbox/agent/process"
	"exec-sandbox/agent/program"
	"exec-sandbox/agent/refusals"
	"exec-sandbox/agent/session"
)

// version is set by the linker.
var version = "0.1.0"

const (
	portName = "exec-sandbox.channel"
	// patience is how long a machine runs without a host.
	patience = 10 * time.Second
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == files.ChildCommand {
		fmt.Fprintln(os.Stderr, "exec-sandbox:", files.Child(os.Args[2:]))
		os.Exit(1)
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "exec-sandbox agent", version, "runs as the first process of a virtual machine")
		os.Exit(2)
	}
	// One processor for Go code: passing a frame on must not wake another
	// thread.
	runtime.GOMAXPROCS(1)
	boot.Fatal(serve())
}

// serve returns only with an error.
func serve() error {
	if err := boot.Run(); err != nil {
		return err
	}
	if err := boot.OpenFiles(); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	reaper := program.NewReaper()
	go reaper.Run(children) // lives as long as the machine

	user := program.User{UID: 1000, GID: 1000, Name: "user", Home: "/home/user"}
	sandbox, err := cgroup.New("/sys/fs/cgroup")
	if err != nil {
		return err
	}
	if err := boot.LockDown(); err != nil {
		return err
	}
	if err := boot.Prioritise(); err != nil {
		return err
	}
	space := &disk.Disk{Root: boot.Scratch}
	refused := refusals.New("/sys/fs/cgroup/sandbox")
	tracker, err := changes.New(boot.Scratch, boot.Image, space.Share)
	if err != nil {
		return err
	}
	outputs, err := output.OpenDirectory("/var/lib/exec-sandbox/output", user.UID, user.GID, space)
	if err != nil {
		return err
	}
	runner, err := interpreter.New(interpreter.Config{
		Directory:    "/run/exec-sandbox",
		Spill:        "/var/lib/exec-sandbox",
		Outputs:      outputs,
		Disk:         space,
		Changes:      tracker,
		Refusals:     refused,
		User:         user,
		Interpreters: interpreter.Installed(interpreter.Interpreters),
		Reaper:       reaper,
		Group:        func(name string) (interpreter.Group, error) { return sandbox.Group(name) },
		Command: func(procs string, argv []string) []string {
			return program.Step{Procs: procs, User: user}.Command(argv)
		},
		Log:   boot.Log,
		Debug: boot.Debug(),
	})
	if err != nil {
		return err
	}
	spawner := &process.Spawner{
		Sandbox: sandbox, Disk: space, Refusals: refused, Changes: tracker, Outputs: outputs,
		Reaper: reaper, User: user, Defaults: runner.Defaults, Log: boot.Log,
	}
	service := files.New(reaper, user.UID, user.GID, user.Home, boot.Log)
	if err := service.Start(); err != nil {
		return err
	}
	gateway := egress.New(refused, boot.Log)
	host := session.New(runner, spawner, service, tracker, gateway, version)
	device, err := channel.FindPort(portName, patience)
	if err != nil {
		return err
	}
	port, err := channel.NewPort(device, patience, boot.PowerOff)
	if err != nil {
		return err
	}
	conn := channel.New(port, host, func(line string) { boot.Log("%s", line) })
	runner.Attach(conn)
	gateway.Attach(conn)
	if err := runner.Start(); err != nil {
		return err
	}
	boot.Log("interpreters are warm")
	if err := conn.Announce(host.Announcement()); err != nil {
		return err
	}
	return conn.Serve()
}
