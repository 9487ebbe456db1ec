// Package files does the host's work on files of the guest.
//
// The agent is root, and user code can plant links. So a child process with the
// user's identity and no privileges does the work: wherever a path leads, the
// child can do no more there than the user's own programs. The agent only
// forwards frames between the host and that child.
package files

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Name is a file's name or path: any bytes except NUL. In JSON it is a string,
// or {"hex":"61ff"} where the bytes are not UTF-8.
type Name string

type hexName struct {
	Hex string `json:"hex"`
}

// MarshalJSON writes the name without loss.
func (n Name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(hexName{hex.EncodeToString([]byte(n))})
}

// UnmarshalJSON reads both forms.
func (n *Name) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, (*string)(n))
	}
	var h hexName
	if err := json.Unmarshal(data, &h); err != nil {
		return err
	}
	name, err := hex.DecodeString(h.Hex)
	*n = Name(name)
	return err
}

// Request is OPEN's payload of every method for files. Paths are absolute, or
// relative to the home directory.
type Request struct {
	Method        string  `json:"method"`
	User          string  `json:"user"` // "root", else the user
	Path          Name    `json:"path"`
	To            Name    `json:"to"`            // file.rename
	Offset        int64   `json:"offset"`        // file.read: bytes
	Length        *int64  `json:"length"`        // file.read: bytes
	Mode          *uint32 `json:"mode"`          // file.write, file.makeDirectory
	Modified      *int64  `json:"modified"`      // file.write: ms since 1970, now when absent
	CreateParents bool    `json:"createParents"` // file.write, file.makeDirectory, tree.write
	Recursive     bool    `json:"recursive"`     // file.remove, file.watch
	Force         bool    `json:"force"`         // file.remove: a missing file is no error
	NoFollow      bool    `json:"noFollow"`      // file.stat: describe a link itself
}

// Decode reads a request and checks it.
func Decode(payload []byte) (*Request, error) {
	r := &Request{}
	if err := json.Unmarshal(payload, r); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Request) check() error {
	if r.Path == "" || r.Method == "file.rename" && r.To == "" {
		return errors.New("a path is empty")
	}
	if strings.ContainsRune(string(r.Path)+string(r.To), 0) {
		return errors.New("a path contains a NUL")
	}
	if r.User != "" && r.User != "user" && r.User != "root" {
		return fmt.Errorf("no user %q", r.User)
	}
	if r.Offset < 0 || r.Length != nil && *r.Length < 0 {
		return errors.New("the offset or the length is negative")
	}
	return nil
}

// Failure is why an operation did not succeed, as END's "error".
type Failure struct {
	Code string `json:"code"` // an errno's name, or one of the codes below
	Path *Name  `json:"path,omitempty"`
	Free *int64 `json:"free,omitempty"` // ENOSPC: bytes
	Type string `json:"type,omitempty"` // NOTAFILE: its type
}

const (
	// notAFile: a FIFO, a socket or a device. Opening one could wait for ever
	// or have an effect, and their content does not end.
	notAFile = "NOTAFILE"
	// changed: a file of a tree became shorter while it was read.
	changed = "CHANGED"
)

func (f *Failure) Error() string { return f.Code }

type failed struct {
	Error *Failure `json:"error"`
}

// failure turns any error into what is reported.
func failure(err error) *Failure {
	f := &Failure{Code: "EIO"}
	var own *Failure
	var errno unix.Errno
	if errors.As(err, &own) {
		*f = *own
	} else if errors.As(err, &errno) {
		f.Code = unix.ErrnoName(errno)
	}
	var located *fs.PathError
	if errors.As(err, &located) {
		name := Name(located.Path)
		f.Path = &name
	}
	return f
}

// at adds the path to an error.
func at(path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: "", Path: path, Err: err}
}

// full adds the free space to an error of a full disk.
func full(err error, directory int) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	f := failure(err)
	f.Code = "ENOSPC"
	var st unix.Statfs_t
	if unix.Fstatfs(directory, &st) == nil {
		free := int64(st.Bavail) * st.Bsize
		f.Free = &free
	}
	return f
}

// KindOf names the type in a mode's bits.
func KindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "character-device"
	default:
		return "block-device"
	}
}

// regular returns an error for what is not a regular file.
func regular(mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return &Failure{Code: notAFile, Type: KindOf(mode)}
}
