package files

import (
	"testing"

	"exec-sandbox/agent/test"
)

func TestGolden(t *testing.T) {
	golden := test.Golden(t)
	answers := map[string]func() any{
		"file.read":          func() any { return &readResult{} },
		"file.write":         func() any { return &writeResult{} },
		"file.list":          func() any { return &listResult{} },
		"file.stat":          func() any { return &entry{} },
		"file.makeDirectory": func() any { return &struct{}{} },
		"file.remove":        func() any { return &struct{}{} },
		"file.rename":        func() any { return &struct{}{} },
		"file.watch":         func() any { return &struct{}{} },
		"tree.read":          func() any { return &treeResult{} },
		"tree.write":         func() any { return &treeResult{} },
	}
	for method, answer := range answers {
		if !Serves(method) {
			t.Errorf("%s is not served", method)
		}
		examples := golden.Of(t, method)
		for _, message := range examples.Requests {
			test.Holds(t, message, &Request{})
			if r, err := Decode(message); err != nil || r.Method != method {
				t.Errorf("%s is read as %+v, %v", message, r, err)
			}
		}
		test.Same(t, examples.Ends[0], answer())
		for _, message := range examples.Ends[1:] {
			test.Same(t, message, &failed{})
		}
	}
	test.Same(t, golden.Lines["list"], &entry{})
	test.Same(t, golden.Lines["watch"], &change{})
}
