package channel

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/quick"
)

// readUnit is how many bytes the kernel's virtio port returns at a time.
const readUnit = 4096

// Port is the guest's end of a virtio-serial port. It stays open for ever,
// because what a host sends to a closed port is lost.
//
// With no host connected the kernel's read returns 0 at once, and poll says
// HUP. The runtime's poller is edge-triggered, so waiting for the next edge
// instead of reading again costs nothing and misses nothing: connecting,
// disconnecting and data are all edges.
type Port struct {
	file   *os.File
	raw    syscall.RawConn
	absent bool
	// patience ends the machine when no host has come back in time. It uses
	// CLOCK_MONOTONIC, which does not advance in a template.
	patience *time.Timer
	limit    time.Duration
}

// FindPort waits for the virtio port of that name to appear and opens it. The
// device's number may change; its name does not.
func FindPort(name string, within time.Duration) (*os.File, error) {
	for deadline := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, path := range names {
			got, err := os.ReadFile(path)
			if err != nil || strings.TrimSpace(string(got)) != name {
				continue
			}
			device := "/dev/" + filepath.Base(filepath.Dir(path))
			fd, err := unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("opening %s: %w", device, err)
			}
			return os.NewFile(uintptr(fd), device), nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no virtio port is named %q", name)
		}
	}
}

// NewPort makes a port from its open device; abandoned runs when no host was
// connected for as long as patience.
func NewPort(file *os.File, patience time.Duration, abandoned func()) (*Port, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("opening the port for polling: %w", err)
	}
	timer := time.AfterFunc(patience, abandoned)
	timer.Stop()
	return &Port{file: file, raw: raw, limit: patience, patience: timer}, nil
}

// Read waits for bytes. It returns ErrLost once when the host goes away.
func (p *Port) Read(b []byte) (n int, err error) {
	lost := false
	waitErr := p.raw.Read(func(fd uintptr) bool {
		for n < len(b) {
			var got int
			got, err = quick.Read(int(fd), b[n:])
			switch {
			case err == unix.EAGAIN:
				p.present()
				return n > 0
			case err != nil:
				return true
			case got == 0:
				if n == 0 {
					lost = p.lose()
				}
				return n > 0 || lost
			}
			n += got
			if got < readUnit {
				break
			}
		}
		p.present()
		return true
	})
	switch {
	case n > 0:
		return n, nil
	case waitErr != nil:
		return 0, waitErr
	case lost:
		return 0, ErrLost
	}
	return 0, err
}

// lose notes that no host is connected and reports whether one was before.
func (p *Port) lose() bool {
	if p.absent {
		return false
	}
	p.absent = true
	p.patience.Reset(p.limit)
	return true
}

func (p *Port) present() {
	if p.absent {
		p.absent = false
		p.patience.Stop()
	}
}

// Write sends all of b, waiting while the port is full or without a host.
func (p *Port) Write(b []byte) (n int, err error) {
	waitErr := p.raw.Write(func(fd uintptr) bool {
		for n < len(b) {
			var put int
			put, err = quick.Write(int(fd), b[n:])
			if err == unix.EAGAIN {
				return false
			}
			if err != nil {
				return true
			}
			n += put
		}
		return true
	})
	if err == nil {
		err = waitErr
	}
	return n, err
}

// Close closes the device.
func (p *Port) Close() error {
	p.patience.Stop()
	return p.file.Close()
}
