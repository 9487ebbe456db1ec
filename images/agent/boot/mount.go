package boot

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

const safe = unix.MS_NOSUID | unix.MS_NODEV

// kernelMounts are needed to find modules and disks; they move to the new root.
var kernelMounts = []mount{
	{"proc", "/proc", "proc", safe | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", "sysfs", safe | unix.MS_NOEXEC, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
}

// systemMounts complete the new root. /run is small because the agent keeps
// little there and its pages cannot be reclaimed.
var systemMounts = []mount{
	{"tmpfs", "/run", "tmpfs", safe, "mode=0755,size=32m"},
	{"tmpfs", "/dev/shm", "tmpfs", safe, "mode=1777"},
	{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", safe | unix.MS_NOEXEC, ""},
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

func (m mount) do() error {
	// Directories cannot be made in /sys: the target exists there, or mounting
	// fails.
	_ = os.MkdirAll(m.target, 0o755)
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", m.source, m.target, err)
	}
	return nil
}

// Scratch and Image are descriptors of the top directories of the scratch disk
// and of the image.
var Scratch, Image = -1, -1

// mountRoot mounts the root: an overlay of the scratch disk on the image.
func mountRoot() error {
	root, err := findDisk("root", "vda", deviceWait)
	if err != nil {
		return err
	}
	scratch, err := findDisk("scratch", "vdb", deviceWait)
	if err != nil {
		return err
	}
	disks := []mount{
		{root, "/lower", "erofs", unix.MS_RDONLY | unix.MS_NODEV, ""},
		{scratch, "/scratch", "ext4", unix.MS_NOATIME | unix.MS_NODEV, ""},
	}
	if err := mountAll(disks); err != nil {
		return err
	}
	for _, directory := range []string{"/scratch/upper", "/scratch/work"} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return fmt.Errorf("preparing the scratch disk: %w", err)
		}
	}
	overlay := mount{
		"overlay", "/newroot", "overlay", unix.MS_NOATIME | unix.MS_NODEV,
		"lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work",
	}
	if err := overlay.do(); err != nil {
		return err
	}
	if Scratch, err = unix.Open("/scratch", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the scratch disk: %w", err)
	}
	if Image, err = unix.Open("/lower", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the image: %w", err)
	}
	// The overlay keeps both in use, and only the agent needs to reach them
	// directly.
	for _, layer := range []string{"/lower", "/scratch"} {
		if err := unix.Unmount(layer, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("detaching %s: %w", layer, err)
		}
	}
	return nil
}

// switchRoot makes newroot the root of this process and of all later ones, and
// frees the memory of the initramfs.
func switchRoot(newroot string) error {
	for _, m := range kernelMounts {
		target := filepath.Join(newroot, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("switching root: %w", err)
		}
		if err := unix.Mount(m.target, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving %s: %w", m.target, err)
		}
	}
	freeInitramfs()
	if err := unix.Chdir(newroot); err != nil {
		return fmt.Errorf("switching root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("changing root: %w", err)
	}
	return unix.Chdir("/")
}

// freeInitramfs removes the files of the initramfs. The running agent stays
// reachable as /proc/self/exe.
func freeInitramfs() {
	var root unix.Stat_t
	if unix.Lstat("/", &root) != nil {
		return
	}
	removeOn(root.Dev, "/")
}

func removeOn(device uint64, directory string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(directory, entry.Name())
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Dev != device {
			continue
		}
		if entry.IsDir() {
			removeOn(device, path)
		}
		_ = os.Remove(path)
	}
}
