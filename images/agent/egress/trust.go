package egress

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// Trust is the file with the host's own certificate authorities, for programs
// that use a list of their own; it is empty until a host names some. Bundle is
// the system's list.
const (
	Trust  = "/run/exec-sandbox-authorities.pem"
	bundle = "/etc/ssl/certs/ca-certificates.crt"
	mark   = "\n# Authorities of the host\n"
)

// SetTrust adds authorities, as PEM, to those that the guest's programs trust.
// It removes those that an earlier host added.
func SetTrust(authorities string) error {
	if err := os.WriteFile(Trust, []byte(authorities), 0o644); err != nil {
		return fmt.Errorf("writing authorities: %w", err)
	}
	system, err := os.ReadFile(bundle)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the system's authorities: %w", err)
	}
	at := bytes.Index(system, []byte(mark))
	if at < 0 && authorities == "" {
		return nil
	}
	if at >= 0 {
		system = system[:at]
	}
	system = append(append(system, mark...), authorities...)
	if err := os.WriteFile(bundle, system, 0o644); err != nil {
		return fmt.Errorf("writing the system's authorities: %w", err)
	}
	return nil
}
