// Package session is what the agent does for the host of the moment: it
// applies the host's greeting and hands requests to those who fulfil them.
package session

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const protocol = 1

// hello is the host's greeting, decoded.
type hello struct {
	purpose     string
	clock       time.Time
	entropy     []byte
	hostname    string
	machineID   string
	env         map[string]string
	memoryBytes int64
	processes   int
	diskBytes   int64
	fileSize    int64
	network     *network
}

// network is what a host grants beside the loopback.
type network struct {
	// Authorities is PEM: whom the host trusts beside everybody's authorities.
	Authorities string `json:"authorities"`
	// Env tells programs about them.
	Env map[string]string `json:"env"`
}

func parseHello(payload []byte) (*hello, error) {
	var raw struct {
		Protocol  int               `json:"protocol"`
		Purpose   string            `json:"purpose"`
		Clock     string            `json:"clock"`
		Entropy   string            `json:"entropy"`
		Hostname  string            `json:"hostname"`
		MachineID string            `json:"machineId"`
		Env       map[string]string `json:"env"`
		Limits    struct {
			MemoryBytes int64 `json:"memoryBytes"`
			Processes   int   `json:"processes"`
			DiskBytes   int64 `json:"diskBytes"`
			FileSize    int64 `json:"fileSizeBytes"`
		} `json:"limits"`
		Network *network `json:"network"`
	}
	if err := json.Unmarshal(payload, &raw); err != nil {
		return nil, err
	}
	if raw.Protocol != protocol {
		return nil, fmt.Errorf("protocol %d, not %d", raw.Protocol, protocol)
	}
	if raw.Purpose != "build" && raw.Purpose != "session" {
		return nil, fmt.Errorf("purpose %q", raw.Purpose)
	}
	nanoseconds, err := strconv.ParseInt(raw.Clock, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("clock: %w", err)
	}
	entropy, err := hex.DecodeString(raw.Entropy)
	if err != nil {
		return nil, fmt.Errorf("entropy: %w", err)
	}
	if len(entropy) != 64 {
		return nil, fmt.Errorf("%d bytes of entropy", len(entropy))
	}
	for name, value := range raw.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("environment variable %q", name)
		}
	}
	if l := raw.Limits; l.MemoryBytes < 0 || l.Processes < 0 || l.DiskBytes < 0 || l.FileSize < 0 {
		return nil, errors.New("a negative limit")
	}
	return &hello{
		purpose:     raw.Purpose,
		clock:       time.Unix(0, nanoseconds),
		entropy:     entropy,
		hostname:    raw.Hostname,
		machineID:   raw.MachineID,
		env:         raw.Env,
		memoryBytes: raw.Limits.MemoryBytes,
		processes:   raw.Limits.Processes,
		diskBytes:   raw.Limits.DiskBytes,
		fileSize:    raw.Limits.FileSize,
		network:     raw.Network,
	}, nil
}

// greeting is the guest's HELLO.
type greeting struct {
	Protocol     int           `json:"protocol"`
	Ready        bool          `json:"ready"`
	Acknowledged *acknowledged `json:"acknowledged,omitempty"`
	Languages    []string      `json:"languages"`
	Kernel       string        `json:"kernel"`
	Agent        string        `json:"agent"`
}

// acknowledged says of each part of the host's greeting whether it holds now.
type acknowledged struct {
	Clock     bool `json:"clock"`
	Entropy   bool `json:"entropy"`
	Hostname  bool `json:"hostname"`
	MachineID bool `json:"machineId"`
	Env       bool `json:"env"`
	Limits    bool `json:"limits"`
	Network   bool `json:"network"`
}
