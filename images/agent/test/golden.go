// Package test reads the golden messages of the protocol for the tests of the
// packages that decode and send them. The host's tests write the file: see
// "npm run golden".
package test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"
)

// Messages are examples of every message, as they travel.
type Messages struct {
	Hello      json.RawMessage            `json:"hello"`
	GuestHello json.RawMessage            `json:"guestHello"`
	Methods    map[string]Method          `json:"methods"`
	Lines      map[string]json.RawMessage `json:"lines"`
}

// Method has the examples of one method.
type Method struct {
	Requests []json.RawMessage `json:"requests"`
	Orders   []json.RawMessage `json:"orders"`
	Notes    []json.RawMessage `json:"notes"`
	Ends     []json.RawMessage `json:"ends"`
}

// Golden reads the messages.
func Golden(t *testing.T) Messages {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "..", "testdata", "messages.json"))
	if err != nil {
		t.Fatal(err)
	}
	var messages Messages
	if err := json.Unmarshal(text, &messages); err != nil {
		t.Fatal(err)
	}
	return messages
}

// Of returns the examples of one method.
func (m Messages) Of(t *testing.T, method string) Method {
	t.Helper()
	found, ok := m.Methods[method]
	if !ok {
		t.Fatalf("there are no examples of %s", method)
	}
	return found
}

// Holds decodes a message into a struct that must know each of its fields, and
// checks that none of the values was lost.
func Holds(t *testing.T, message json.RawMessage, into any) {
	t.Helper()
	fields := object(t, message)
	delete(fields, "method") // read by the session
	known, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	strict := json.NewDecoder(bytes.NewReader(known))
	strict.DisallowUnknownFields()
	if err := strict.Decode(into); err != nil {
		t.Fatalf("%s does not fit %T: %v", message, into, err)
	}
	again, err := json.Marshal(into)
	if err != nil {
		t.Fatal(err)
	}
	got := object(t, again)
	for name, want := range fields {
		if !contains(got[name], want) {
			t.Errorf("%T lost %s: %v became %v", into, name, want, got[name])
		}
	}
}

// Same checks that a struct writes a message as the host reads it: with these
// fields and no others.
func Same(t *testing.T, message json.RawMessage, into any) {
	t.Helper()
	Holds(t, message, into)
	again, err := json.Marshal(into)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := object(t, again), object(t, message); !reflect.DeepEqual(got, want) {
		t.Errorf("%T is written as %s, the host reads %s", into, again, message)
	}
}

// contains reports whether got has all that want has: a struct may have more
// fields, which are then empty.
func contains(got, want any) bool {
	fields, nested := want.(map[string]any)
	if !nested {
		return reflect.DeepEqual(got, want)
	}
	all, ok := got.(map[string]any)
	for name, value := range fields {
		ok = ok && contains(all[name], value)
	}
	return ok
}

func object(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return fields
}
