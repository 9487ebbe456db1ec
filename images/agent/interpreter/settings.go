package interpreter

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"exec-sandbox/agent/program"
)

// settings are what an interpreter applies before one execution.
type settings struct {
	Language  string
	Env       map[string]string
	Cwd       *string
	Entropy   *string
	Stdin     bool   // its input is in a file
	Rehearsal bool   // the code leaves no state behind
	Code      []byte // nil: it is in a file
}

// canHold reports whether code can be sent in an order unchanged: JavaScript
// decodes it as UTF-8, and a NUL ends a field.
func canHold(code []byte) bool { return utf8.Valid(code) && bytes.IndexByte(code, 0) < 0 }

// encode appends them for an interpreter: as fields, or as assignments for
// bash.
func (s settings) encode(out []byte, shell bool) []byte {
	if !shell {
		return s.fields(out)
	}
	assign := func(name, value string) {
		out = append(append(append(append(append(out, "__exec_sandbox_"...), name...), '='), value...), '\n')
	}
	text := func(value *string) string {
		if value == nil {
			return "''"
		}
		return quote(*value)
	}
	if s.Stdin {
		assign("stdin", "1")
	}
	if s.Code != nil {
		assign("code", quote(string(s.Code)))
	}
	assign("entropy", text(s.Entropy))
	assign("cwd", text(s.Cwd))
	env := program.Pairs(s.Env)
	for i, pair := range env {
		env[i] = quote(pair)
	}
	assign("env", "( "+strings.Join(env, " ")+" )")
	return out
}

// fields ends each field with a NUL, which none can contain: the language;
// flags (s: there is a file stdin, r: a rehearsal, c: the code is here, else in
// a file); entropy; directory; the number of variables; each variable. The code
// comes last, without a NUL.
func (s settings) fields(out []byte) []byte {
	out = append(append(out, s.Language...), 0)
	for _, there := range []struct {
		is   bool
		mark byte
	}{{s.Stdin, 's'}, {s.Rehearsal, 'r'}, {s.Code != nil, 'c'}} {
		if there.is {
			out = append(out, there.mark)
		}
	}
	out = append(out, 0)
	for _, text := range []*string{s.Entropy, s.Cwd} {
		if text != nil {
			out = append(out, *text...)
		}
		out = append(out, 0)
	}
	out = append(strconv.AppendInt(out, int64(len(s.Env)), 10), 0)
	if len(s.Env) > 0 {
		for _, pair := range program.Pairs(s.Env) {
			out = append(append(out, pair...), 0)
		}
	}
	return append(out, s.Code...)
}

// quote makes one shell word of any text without NUL.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
