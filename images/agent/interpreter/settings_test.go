package interpreter

import "testing"

func TestSettings(t *testing.T) {
	cwd, entropy := "/it's", "00ff"
	s := settings{Language: "python", Env: map[string]string{"B": "2", "A": "1"}, Cwd: &cwd}
	text := s.encode(nil, false)
	if want := "python\x00\x00\x00/it's\x002\x00A=1\x00B=2\x00"; string(text) != want {
		t.Errorf("got %q", text)
	}
	s.Entropy, s.Stdin, s.Code, s.Rehearsal = &entropy, true, []byte("<it's>"), true
	text = s.encode(nil, false)
	if want := "python\x00src\x0000ff\x00/it's\x002\x00A=1\x00B=2\x00<it's>"; string(text) != want {
		t.Errorf("got %q", text)
	}
	text = s.encode(nil, true)
	want := "__exec_sandbox_stdin=1\n__exec_sandbox_code='<it'\\''s>'\n__exec_sandbox_entropy='00ff'\n__exec_sandbox_cwd='/it'\\''s'\n__exec_sandbox_env=( 'A=1' 'B=2' )\n"
	if string(text) != want {
		t.Errorf("got %s", text)
	}
}
