package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Prioritise lets the agent answer however busy the guest is, and keeps the
// kernel from killing it when memory is short. Threads made later inherit both.
func Prioritise() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		return fmt.Errorf("protecting the agent: %w", err)
	}
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return fmt.Errorf("listing threads: %w", err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(filepath.Base(thread))
		if err != nil {
			continue
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, -20); err != nil {
			return fmt.Errorf("raising the priority: %w", err)
		}
	}
	return nil
}
