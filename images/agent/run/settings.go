package run

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"
	"unicode/utf8"
)

// settings are what an interpreter applies before one execution.
type settings struct {
	Language string            `json:"language"`
	Env      map[string]string `json:"env"`
	Cwd      *string           `json:"cwd"`
	Entropy  *string           `json:"entropy"`
	Sequence int               `json:"sequence"`
	Stdin    bool              `json:"stdin"`          // there is a file of that name
	Code     *string           `json:"code,omitempty"` // unless there is a file of that name
}

// canHold reports whether code arrives unchanged: JSON holds no other text than
// UTF-8, a shell's word no NUL.
func canHold(code []byte) bool { return utf8.Valid(code) && bytes.IndexByte(code, 0) < 0 }

// encode writes them for an interpreter: JSON, or assignments for bash.
func (s settings) encode(shell bool) ([]byte, error) {
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	if !shell {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		err := encoder.Encode(s)
		return bytes.TrimRight(out.Bytes(), "\n"), err
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
	return []byte(out.String()), nil
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
