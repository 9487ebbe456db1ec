// Package session serves the connected host: it applies the host's greeting and
// passes each request to the package that serves its method.
package session

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"exec-sandbox/agent/flat"
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

// network is what a host grants in addition to the loopback.
type network struct {
	// Authorities are certificate authorities of the host's own, as PEM.
	Authorities string `json:"authorities"`
	// Env are the variables that make programs use them.
	Env map[string]string `json:"env"`
}

// greeted is the host's greeting as it is sent.
type greeted struct {
	Protocol  int64             `json:"protocol"`
	Purpose   string            `json:"purpose"`
	Clock     string            `json:"clock"`
	Entropy   string            `json:"entropy"`
	Hostname  string            `json:"hostname"`
	MachineID string            `json:"machineId"`
	Env       map[string]string `json:"env"`
	Limits    struct {
		MemoryBytes int64 `json:"memoryBytes"`
		Processes   int64 `json:"processes"`
		DiskBytes   int64 `json:"diskBytes"`
		FileSize    int64 `json:"fileSizeBytes"`
	} `json:"limits"`
	Network *network `json:"network"`
}

// usual reads a greeting without environment and network.
func (raw *greeted) usual(payload []byte) bool {
	return flat.Members(payload, func(key string, v flat.Value) bool {
		switch key {
		case "protocol":
			return v.Number(&raw.Protocol)
		case "purpose":
			return v.Text(&raw.Purpose)
		case "clock":
			return v.Text(&raw.Clock)
		case "entropy":
			return v.Text(&raw.Entropy)
		case "hostname":
			return v.Text(&raw.Hostname)
		case "machineId":
			return v.Text(&raw.MachineID)
		case "env":
			return v.IsEmpty()
		case "network":
			return v.IsNull()
		case "limits":
			return flat.Members(v, func(key string, v flat.Value) bool {
				switch key {
				case "memoryBytes":
					return v.Number(&raw.Limits.MemoryBytes)
				case "processes":
					return v.Number(&raw.Limits.Processes)
				case "diskBytes":
					return v.Number(&raw.Limits.DiskBytes)
				case "fileSizeBytes":
					return v.Number(&raw.Limits.FileSize)
				}
				return false
			})
		}
		return false
	})
}

func parseHello(payload []byte) (*hello, error) {
	var raw greeted
	if !raw.usual(payload) {
		raw = greeted{}
		if err := json.Unmarshal(payload, &raw); err != nil {
			return nil, err
		}
	}
	if raw.Protocol != protocol {
		return nil, fmt.Errorf("protocol %d, not %d", raw.Protocol, protocol)
	}
	switch raw.Purpose {
	case "build", "rehearsal", "claim", "session", "wake":
	default:
		return nil, fmt.Errorf("unknown purpose %q", raw.Purpose)
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
		return nil, fmt.Errorf("%d bytes of entropy, not 64", len(entropy))
	}
	for name, value := range raw.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("invalid environment variable %q", name)
		}
	}
	if l := raw.Limits; l.MemoryBytes < 0 || l.Processes < 0 || l.DiskBytes < 0 || l.FileSize < 0 {
		return nil, errors.New("a limit is negative")
	}
	return &hello{
		purpose:     raw.Purpose,
		clock:       time.Unix(0, nanoseconds),
		entropy:     entropy,
		hostname:    raw.Hostname,
		machineID:   raw.MachineID,
		env:         raw.Env,
		memoryBytes: raw.Limits.MemoryBytes,
		processes:   int(raw.Limits.Processes),
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

// acknowledged says which parts of the host's greeting were applied.
type acknowledged struct {
	Clock     bool `json:"clock"`
	Entropy   bool `json:"entropy"`
	Hostname  bool `json:"hostname"`
	MachineID bool `json:"machineId"`
	Env       bool `json:"env"`
	Limits    bool `json:"limits"`
	Network   bool `json:"network"`
}

// AppendJSON writes the guest's HELLO.
func (g greeting) AppendJSON(out []byte) []byte {
	out = strconv.AppendInt(append(out, `{"protocol":`...), int64(g.Protocol), 10)
	out = strconv.AppendBool(append(out, `,"ready":`...), g.Ready)
	if a := g.Acknowledged; a != nil {
		out = strconv.AppendBool(append(out, `,"acknowledged":{"clock":`...), a.Clock)
		out = strconv.AppendBool(append(out, `,"entropy":`...), a.Entropy)
		out = strconv.AppendBool(append(out, `,"hostname":`...), a.Hostname)
		out = strconv.AppendBool(append(out, `,"machineId":`...), a.MachineID)
		out = strconv.AppendBool(append(out, `,"env":`...), a.Env)
		out = strconv.AppendBool(append(out, `,"limits":`...), a.Limits)
		out = strconv.AppendBool(append(out, `,"network":`...), a.Network)
		out = append(out, '}')
	}
	out = append(out, `,"languages":[`...)
	for n, language := range g.Languages {
		if n > 0 {
			out = append(out, ',')
		}
		out = flat.AppendText(out, language)
	}
	out = flat.AppendText(append(out, `],"kernel":`...), g.Kernel)
	out = flat.AppendText(append(out, `,"agent":`...), g.Agent)
	return append(out, '}')
}
