package boot

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sysctls restrict what user code can do with the kernel, except that they
// allow it more inotify instances. Modules come last: all that are needed have
// been loaded, and no more ever will be.
var sysctls = []struct{ name, value string }{
	{"kernel.io_uring_disabled", "2"},
	{"kernel.unprivileged_bpf_disabled", "1"},
	{"kernel.kptr_restrict", "2"},
	{"kernel.dmesg_restrict", "1"},
	{"kernel.perf_event_paranoid", "3"},
	{"kernel.sysrq", "0"},
	// A namespace of a user's own would give it all capabilities inside: mounts,
	// raw sockets, and much kernel code that few have tested. Root may allow it.
	{"user.max_user_namespaces", "0"},
	{"kernel.yama.ptrace_scope", "1"},
	{"kernel.kexec_load_disabled", "1"},
	{"fs.inotify.max_user_instances", "1024"}, // each watch by a host takes one
	{"fs.protected_symlinks", "1"},
	{"fs.protected_hardlinks", "1"},
	{"kernel.modules_disabled", "1"},
}

// LockDown restricts the kernel once everything is set up. A setting that this
// kernel does not have is skipped; one that it refuses is an error.
func LockDown() error {
	for _, s := range sysctls {
		path := "/proc/sys/" + strings.ReplaceAll(s.name, ".", "/")
		err := os.WriteFile(path, []byte(s.value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("setting %s: %w", s.name, err)
		}
	}
	err := unix.Mount("proc", "/proc", "proc", safe|unix.MS_NOEXEC|unix.MS_REMOUNT, "hidepid=invisible")
	if err != nil {
		return fmt.Errorf("hiding processes: %w", err)
	}
	return nil
}

// OpenFiles raises the limit of open files to what a host's streams may need,
// for the agent and not for what it starts.
func OpenFiles() error {
	limit := unix.Rlimit{Cur: 65536, Max: 65536}
	// Not with Setrlimit: then programs would inherit it.
	_, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("setting the limit of open files: %w", errno)
	}
	return nil
}
