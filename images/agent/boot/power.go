package boot

import (
	"time"

	"golang.org/x/sys/unix"
)

// PowerOff writes cached data to the disk, for a short time, and ends the
// machine. It does not return.
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
	// QEMU runs with -no-reboot, so a restart ends it as well. A restart works
	// on every machine type; powering off needs ACPI or PSCI.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}
