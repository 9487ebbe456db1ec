package run

import (
	"bytes"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"exec-sandbox/agent/flat"
)

// settings are what an interpreter applies before one execution.
type settings struct {
	Language  string
	Env       map[string]string
	Cwd       *string
	Entropy   *string
	Sequence  int
	Stdin     bool    // there is a file of that name
	Rehearsal bool    // the code leaves nothing behind
	Code      *string // unless there is a file of that name
}

// canHold reports whether code arrives unchanged: JSON holds no other text than
// UTF-8, a shell's word no NUL.
func canHold(code []byte) bool { return utf8.Valid(code) && bytes.IndexByte(code, 0) < 0 }

// encode writes them for an interpreter: JSON, or assignments for bash.
func (s settings) encode(shell bool) []byte {
	if !shell {
		return s.json()
	}
	var out strings.Builder
	assign := func(name, value string) {
		out.WriteString("__exec_sandbox_" + name + "=" + value + "\n")
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
		assign("code", quote(*s.Code))
	}
	assign("entropy", text(s.Entropy))
	assign("cwd", text(s.Cwd))
	env := pairs(s.Env)
	for i, pair := range env {
		env[i] = quote(pair)
	}
	assign("env", "( "+strings.Join(env, " ")+" )")
	return []byte(out.String())
}

func (s settings) json() []byte {
	out := flat.AppendText([]byte(`{"language":`), s.Language)
	out = append(out, `,"env":{`...)
	names := make([]string, 0, len(s.Env))
	for name := range s.Env {
		names = append(names, name)
	}
	sort.Strings(names)
	for n, name := range names {
		if n > 0 {
			out = append(out, ',')
		}
		out = flat.AppendText(append(flat.AppendText(out, name), ':'), s.Env[name])
	}
	out = flat.AppendOptional(append(out, `},"cwd":`...), s.Cwd)
	out = flat.AppendOptional(append(out, `,"entropy":`...), s.Entropy)
	out = strconv.AppendInt(append(out, `,"sequence":`...), int64(s.Sequence), 10)
	out = strconv.AppendBool(append(out, `,"stdin":`...), s.Stdin)
	if s.Rehearsal {
		out = append(out, `,"rehearsal":true`...)
	}
	if s.Code != nil {
		out = flat.AppendText(append(out, `,"code":`...), *s.Code)
	}
	return append(out, '}')
}

// quote makes one word of any text without NUL.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// pairs is an environment as execve takes it, in a stable order.
func pairs(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return out
}
