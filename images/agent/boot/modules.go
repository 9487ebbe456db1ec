package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loadModules loads the modules of the initramfs in the order of its list.
func loadModules(directory string) error {
	list, err := os.ReadFile(filepath.Join(directory, "load.order"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel with everything built in
	}
	if err != nil {
		return fmt.Errorf("reading the list of modules: %w", err)
	}
	for _, name := range strings.Fields(string(list)) {
		if err := loadModule(filepath.Join(directory, name)); err != nil {
			return fmt.Errorf("loading module %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	err = unix.FinitModule(int(file.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if errors.Is(err, unix.ENODEV) {
		// A driver for hardware that this machine type does not have.
		Log("module %s: no such device", filepath.Base(path))
		return nil
	}
	return err
}
