package boot

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const deviceWait = 10 * time.Second

// Run sets the machine up, from the initramfs to the final root file system, in
// which the calling process continues.
func Run() error {
	unix.Umask(0o022)
	if err := mountAll(kernelMounts); err != nil {
		return err
	}
	if err := standardDescriptors(); err != nil {
		return err
	}
	// The agent logs little, and none of it may be lost to rate limiting.
	_ = os.WriteFile("/proc/sys/kernel/printk_devkmsg", []byte("on"), 0)
	Log("agent started")
	if err := loadModules("/modules"); err != nil {
		return err
	}
	// For the network, if a host grants one. A kernel may have it built in.
	if err := loadModule("/modules/tun.ko"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("loading module tun: %w", err)
	}
	if err := mountRoot(); err != nil {
		return err
	}
	if err := switchRoot("/newroot"); err != nil {
		return err
	}
	Log("root switched")
	if err := mountAll(systemMounts); err != nil {
		return err
	}
	if err := prepareRoot(); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	logCrashes()
	return nil
}

// prepareRoot makes the links and files that the image lacks because it was
// built without a running system.
func prepareRoot() error {
	links := map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	}
	for name, target := range links {
		if err := os.Symlink(target, name); err != nil && !os.IsExist(err) {
			return fmt.Errorf("linking %s: %w", name, err)
		}
	}
	// A private instance of devpts has its own multiplexer.
	_ = os.Remove("/dev/ptmx")
	if err := os.Symlink("pts/ptmx", "/dev/ptmx"); err != nil {
		return fmt.Errorf("linking /dev/ptmx: %w", err)
	}
	if err := os.Chmod("/tmp", 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("opening /tmp to all: %w", err)
	}
	// The machine's id and its name change with every clone. On tmpfs that takes
	// no disk write.
	if err := mountFile(MachineID, "/etc/machine-id", 0o444); err != nil {
		return err
	}
	return mountFile(Hosts, "/etc/hosts", 0o644)
}

// The files that are mounted on /etc/machine-id and /etc/hosts.
const (
	MachineID = "/run/machine-id"
	Hosts     = "/run/hosts"
)

// mountFile makes an empty file and mounts it on another.
func mountFile(file, on string, mode os.FileMode) error {
	if err := os.WriteFile(file, nil, mode); err != nil {
		return fmt.Errorf("making %s: %w", file, err)
	}
	if _, err := os.Stat(on); err != nil {
		if err := os.WriteFile(on, nil, mode); err != nil {
			return fmt.Errorf("making %s: %w", on, err)
		}
	}
	if err := unix.Mount(file, on, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", on, err)
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	return nil
}
