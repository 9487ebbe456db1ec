// Package flat reads and writes small JSON objects on the hot path.
//
// Under emulation, code is translated when it first runs, and a clone has
// translated little of it. encoding/json, which uses reflection, would be
// thousands of blocks. This package reads only what the usual messages consist
// of, and reports when a message is of another kind, so that encoding/json can
// read that one.
package flat

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// Value is a member's value as JSON.
type Value []byte

// Members visits the members of an object that JSON.stringify wrote. It returns
// false for what it, or visit, does not understand; the text may then not even
// be JSON.
func Members(text []byte, visit func(key string, value Value) bool) bool {
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		return false
	}
	rest := text[1 : len(text)-1]
	for len(rest) > 0 {
		n := word(rest)
		if n < 0 || n == len(rest) || rest[n] != ':' {
			return false
		}
		key := rest[1 : n-1]
		rest = rest[n+1:]
		if n = value(rest); n < 0 || !visit(string(key), Value(rest[:n])) {
			return false
		}
		if rest = rest[n:]; len(rest) == 0 {
			return true
		}
		if rest[0] != ',' || len(rest) == 1 {
			return false
		}
		rest = rest[1:]
	}
	return true
}

// value is the length of the value at the start of the text, -1 for one that is
// not understood.
func value(text []byte) int {
	if len(text) == 0 {
		return -1
	}
	switch text[0] {
	case '"':
		return word(text)
	case '{':
		// One level is enough for everything that is sent.
		end := bytes.IndexByte(text, '}') + 1
		if end == 0 || !Members(text[:end], func(_ string, v Value) bool { return v[0] != '{' }) {
			return -1
		}
		return end
	case '[':
		if len(text) > 1 && text[1] == ']' {
			return 2
		}
		return -1
	}
	for _, literal := range []string{"null", "true", "false"} {
		if len(text) >= len(literal) && string(text[:len(literal)]) == literal {
			return len(literal)
		}
	}
	return number(text)
}

// number is the length of a whole number.
func number(text []byte) int {
	n := 0
	if text[0] == '-' {
		n = 1
	}
	start := n
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	if n == start || n-start > 18 || n-start > 1 && text[start] == '0' {
		return -1
	}
	return n
}

// word is the length of a string of plain ASCII, with its quotes.
func word(text []byte) int {
	if len(text) == 0 || text[0] != '"' {
		return -1
	}
	for n := 1; n < len(text); n++ {
		switch b := text[n]; {
		case b == '"':
			return n + 1
		case b == '\\' || b < ' ' || b >= utf8.RuneSelf:
			return -1
		}
	}
	return -1
}

// IsNull reports whether it is null.
func (v Value) IsNull() bool { return string(v) == "null" }

// IsEmpty reports whether it is an object without members, or a list without items.
func (v Value) IsEmpty() bool { return string(v) == "{}" || string(v) == "[]" }

// Text reads a string.
func (v Value) Text(to *string) bool {
	if v[0] != '"' {
		return false
	}
	*to = string(v[1 : len(v)-1])
	return true
}

// Number reads a whole number.
func (v Value) Number(to *int64) bool {
	n, err := strconv.ParseInt(string(v), 10, 64)
	*to = n
	return err == nil
}

// Bool reads true or false.
func (v Value) Bool(to *bool) bool {
	*to = string(v) == "true"
	return *to || string(v) == "false"
}

const digits = "0123456789abcdef"

// AppendText writes a string; what is not UTF-8 in it becomes U+FFFD.
func AppendText(out []byte, text string) []byte {
	out = append(out, '"')
	start := 0
	for at := 0; at < len(text); {
		b := text[at]
		if b >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(text[at:])
			if r == utf8.RuneError && size == 1 {
				out = append(append(out, text[start:at]...), `\ufffd`...)
				start = at + 1
			}
			at += size
			continue
		}
		if b >= ' ' && b != '"' && b != '\\' {
			at++
			continue
		}
		out = append(out, text[start:at]...)
		switch b {
		case '"', '\\':
			out = append(out, '\\', b)
		case '\n':
			out = append(out, '\\', 'n')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', '0', '0', digits[b>>4], digits[b&15])
		}
		at++
		start = at
	}
	return append(append(out, text[start:]...), '"')
}

// AppendOptional writes a string or null.
func AppendOptional(out []byte, text *string) []byte {
	if text == nil {
		return append(out, "null"...)
	}
	return AppendText(out, *text)
}
