package flat

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// all is what Members visits.
func all(text string) (map[string]string, bool) {
	seen := map[string]string{}
	ok := Members([]byte(text), func(key string, value Value) bool {
		seen[key] = string(value)
		return true
	})
	return seen, ok
}

func TestMembers(t *testing.T) {
	got, ok := all(`{"a":"x y","b":-12,"c":null,"d":true,"e":{},"f":[],"g":{"h":1,"i":"j"},"k":0}`)
	want := map[string]string{
		"a": `"x y"`, "b": "-12", "c": "null", "d": "true", "e": "{}", "f": "[]", "g": `{"h":1,"i":"j"}`, "k": "0",
	}
	if !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v %v", got, ok)
	}
	if got, ok := all("{}"); !ok || len(got) != 0 {
		t.Errorf("got %v %v", got, ok)
	}
}

// Everything that it understands must be JSON with exactly these values.
func TestNothingButJSONIsUnderstood(t *testing.T) {
	for _, text := range []string{
		"", "{", "}", "null", "[]", `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1,,"b":2}`, `{"a":1 }`, ` {"a":1}`, `{"a": 1}`,
		`{"a":01}`, `{"a":-}`, `{"a":1.5}`, `{"a":1e3}`, `{"a":"\n"}`, "{\"a\":\"\n\"}", `{"a":"é"}`, `{"a":"x}`, `{"a":nul}`,
		`{"a":nulll}`, `{"a":[1]}`, `{"a":{"b":{"c":1}}}`, `{"a":{"b":"}"}}`, `{"a":1}}`, `{"a":{}`, `{a:1}`, `{"a":"x"y}`, `{"a":1"b":2}`,
		`{"a":1234567890123456789}`, `{"a":--1}`, `{"a":{}{}}`, `{"a":tru}`,
	} {
		if got, ok := all(text); ok {
			t.Errorf("%s: understood as %v", text, got)
		}
	}
}

func FuzzMembers(f *testing.F) {
	f.Add(`{"a":"x y","b":-12,"c":null,"d":true,"e":{},"f":[],"g":{"h":1,"i":"j"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := all(text)
		if !ok {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %v, not %s", text, got, want)
		}
		for key, value := range want {
			if got[key] != string(value) {
				t.Fatalf("%s: %s is %s", text, key, got[key])
			}
		}
	})
}

func TestAppendText(t *testing.T) {
	for _, text := range []string{
		"", "plain", "é€😀", `"\/`, "\n\r\t\x00\x1f\x7f", "<&>", "a\xffb\xc3", "\u2028", strings.Repeat("x", 10000) + "\"",
	} {
		var back string
		if err := json.Unmarshal(AppendText(nil, text), &back); err != nil {
			t.Errorf("%q: %v", text, err)
		} else if back != strings.ToValidUTF8(strings.ReplaceAll(text, "\xffb\xc3", "\ufffdb\ufffd"), "\ufffd") {
			t.Errorf("%q became %q", text, back)
		}
	}
}

func TestValues(t *testing.T) {
	var text string
	var number int64
	var yes bool
	if !Value(`"x"`).Text(&text) || text != "x" || Value("1").Text(&text) {
		t.Error("texts")
	}
	if !Value("-7").Number(&number) || number != -7 || Value("true").Number(&number) || Value(`"1"`).Number(&number) {
		t.Error("numbers")
	}
	if !Value("true").Bool(&yes) || !yes || !Value("false").Bool(&yes) || yes || Value("null").Bool(&yes) {
		t.Error("booleans")
	}
	if !Value("null").IsNull() || !Value("{}").IsEmpty() || !Value("[]").IsEmpty() || Value("0").IsEmpty() {
		t.Error("nothing")
	}
}
