package session

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// methodOf reads only the method of a request, which the host writes first: the
// package that serves the method decodes the whole request, once.
func methodOf(payload []byte) (string, error) {
	start := []byte(`{"method":"`)
	if bytes.HasPrefix(payload, start) {
		method, _, ended := bytes.Cut(payload[len(start):], []byte(`"`))
		if string(method) == "exec" { // nearly always: avoid the copy
			return "exec", nil
		}
		if ended && bytes.IndexByte(method, '\\') < 0 {
			return string(method), nil
		}
	}
	var request struct {
		Method string `json:"method"`
	}
	err := decode(payload, &request)
	return request.Method, err
}

// decodeNetwork reads OPEN's payload of the method network.
func decodeNetwork(payload []byte) (*network, error) {
	granted := &network{}
	err := decode(payload, granted)
	return granted, err
}

func decode(payload []byte, request any) error {
	if err := json.Unmarshal(payload, request); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	return nil
}
