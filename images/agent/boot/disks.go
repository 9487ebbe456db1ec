package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// findDisk waits for the disk with that virtio serial. A disk without a serial
// is found by its usual name.
func findDisk(serial, customary string, within time.Duration) (string, error) {
	for deadline := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		serials, _ := filepath.Glob("/sys/block/*/serial")
		for _, path := range serials {
			got, err := os.ReadFile(path)
			if err == nil && strings.TrimSpace(string(got)) == serial {
				return "/dev/" + filepath.Base(filepath.Dir(path)), nil
			}
		}
		if got, err := os.ReadFile("/sys/block/" + customary + "/serial"); err == nil &&
			strings.TrimSpace(string(got)) == "" {
			return "/dev/" + customary, nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("no disk with the serial %q", serial)
		}
	}
}
