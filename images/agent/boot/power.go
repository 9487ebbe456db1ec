package boot

import (
	"time"

	"golang.org/x/sys/unix"
)

// PowerOff writes what is dirty, briefly, and ends the machine. It does not
// return.
func PowerOff() {
	synced := make(chan struct{})
	go func() {
		unix.Sync()
		close(synced)
	}()
	select {
	case <-synced:
	case <-time.After(2 * time.Second): // a stuck disk must not keep a machine alive
	}
	// QEMU runs with -no-reboot, where a restart ends it as well. That is the
	// way that works on every machine type; powering off needs ACPI or PSCI.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}
