package files

import (
	"archive/tar"
	"bufio"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"sort"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth keeps the number of open directories well below the limit.
	maxDepth = 4096
	// The records with names that are not UTF-8, as hex.
	paxPath = "EXECSANDBOX.path"
	paxLink = "EXECSANDBOX.linkpath"
)

type treeResult struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`   // of the files
	Skipped int   `json:"skipped"` // neither a file, a directory nor a link
}

// readTree sends a directory as a tar archive, the directory itself first.
func readTree(r *Request, in *inbox) (any, error) {
	fd, err := unix.Open(string(r.Path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(outbox{in.stream}, unit)
	t := treeReader{root: string(r.Path), tar: tar.NewWriter(out), buffer: make([]byte, unit)}
	if err := t.directory(fd, "", 0); err != nil {
		return nil, err
	}
	if err := t.tar.Close(); err != nil {
		return nil, err
	}
	return t.result, out.Flush()
}

type treeReader struct {
	root   string
	tar    *tar.Writer
	buffer []byte
	result treeResult
}

func (t *treeReader) header(kind byte, name, link string, st *unix.Stat_t) error {
	h := &tar.Header{
		Typeflag: kind,
		Name:     strings.ToValidUTF8(name, "\uFFFD"),
		Linkname: strings.ToValidUTF8(link, "\uFFFD"),
		Mode:     int64(st.Mode & 0o7777),
		ModTime:  time.Unix(int64(st.Mtim.Sec), 0),
	}
	if kind == tar.TypeReg {
		h.Size = st.Size
	}
	for key, value := range map[string]string{paxPath: name, paxLink: link} {
		if utf8.ValidString(value) {
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[key] = hex.EncodeToString([]byte(value))
	}
	t.result.Entries++
	return t.tar.WriteHeader(h)
}

// directory takes over the descriptor. Links below are never followed.
func (t *treeReader) directory(fd int, name string, depth int) error {
	directory := os.NewFile(uintptr(fd), name)
	defer directory.Close()
	full := path.Join(t.root, name)
	if depth > maxDepth {
		return at(full, unix.ENAMETOOLONG)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return at(full, err)
	}
	itself := name + "/"
	if name == "" {
		itself = "./"
	}
	if err := t.header(tar.TypeDir, itself, "", &st); err != nil {
		return at(full, err)
	}
	names, err := directory.Readdirnames(-1)
	if err != nil {
		return at(full, err)
	}
	sort.Strings(names)
	for _, child := range names {
		if err := t.entry(fd, name, child, depth); err != nil {
			return err
		}
	}
	return nil
}

func (t *treeReader) entry(base int, parent, child string, depth int) error {
	name := child
	if parent != "" {
		name = parent + "/" + child
	}
	full := t.root + "/" + name
	var st unix.Stat_t
	err := unix.Fstatat(base, child, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil // removed in between
	}
	if err != nil {
		return at(full, err)
	}
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target := readLink(base, child)
		if target == nil {
			return nil
		}
		return at(full, t.header(tar.TypeSymlink, name, string(*target), &st))
	case unix.S_IFDIR:
		fd, err := unix.Openat(base, child, flags|unix.O_DIRECTORY, 0)
		if err != nil {
			return at(full, err)
		}
		return t.directory(fd, name, depth+1)
	case unix.S_IFREG:
		fd, err := unix.Openat(base, child, flags, 0)
		if err != nil {
			return at(full, err)
		}
		defer unix.Close(fd)
		return at(full, t.file(fd, name))
	}
	t.result.Skipped++
	return nil
}

func (t *treeReader) file(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := regular(st.Mode); err != nil {
		return err
	}
	if err := t.header(tar.TypeReg, name, "", &st); err != nil {
		return err
	}
	for left := st.Size; left > 0; {
		p := t.buffer
		if left < int64(len(p)) {
			p = p[:left]
		}
		n, err := unix.Read(fd, p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return &Failure{Code: changed}
		}
		if _, err := t.tar.Write(p[:n]); err != nil {
			return err
		}
		left -= int64(n)
		t.result.Bytes += int64(n)
	}
	return nil
}

// writeTree unpacks an archive into a directory. Existing links are replaced,
// never followed.
func writeTree(r *Request, in *inbox) (any, error) {
	root := string(r.Path)
	created := false
	if r.CreateParents {
		if err := os.MkdirAll(path.Dir(path.Clean(root)), 0o755); err != nil {
			return nil, err
		}
	}
	err := unix.Mkdir(root, 0o755)
	if err == nil {
		created = true
	} else if !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	w := &treeWriter{root: root, base: fd, current: -1, buffer: make([]byte, unit)}
	defer w.close()
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = w.entry(h, archive, created)
		}
		if err != nil {
			return nil, err
		}
	}
	return w.result, w.finish()
}

type treeWriter struct {
	root    string
	base    int
	where   string // the directory that current is
	current int
	buffer  []byte
	result  treeResult
	made    []madeDirectory
}

// madeDirectory gets its mode and time when its content is complete.
type madeDirectory struct {
	name string
	mode uint32
	time time.Time
}

func (w *treeWriter) close() {
	w.leave()
	_ = unix.Close(w.base)
}

func (w *treeWriter) leave() {
	if w.current >= 0 {
		_ = unix.Close(w.current)
	}
	w.current, w.where = -1, ""
}

func (w *treeWriter) entry(h *tar.Header, content io.Reader, created bool) error {
	name, link := h.Name, h.Linkname
	for key, value := range map[string]*string{paxPath: &name, paxLink: &link} {
		if raw, ok := h.PAXRecords[key]; ok {
			bytes, err := hex.DecodeString(raw)
			if err != nil {
				return unix.EINVAL
			}
			*value = string(bytes)
		}
	}
	name = strings.Trim(name, "/")
	if name == "" || name == "." {
		if created {
			w.made = append(w.made, madeDirectory{"", uint32(h.Mode & 0o777), h.ModTime})
		}
		return nil
	}
	full := w.root + "/" + name
	parent, leaf := path.Split(name)
	directory, err := w.enter(strings.TrimSuffix(parent, "/"))
	if err != nil {
		return at(full, err)
	}
	w.result.Entries++
	switch h.Typeflag {
	case tar.TypeDir:
		err = unix.Mkdirat(directory, leaf, 0o700)
		if errors.Is(err, unix.EEXIST) {
			var st unix.Stat_t
			if err := unix.Fstatat(directory, leaf, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return at(full, err)
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return at(full, unix.ENOTDIR)
			}
			return nil
		}
		w.made = append(w.made, madeDirectory{name, uint32(h.Mode & 0o777), h.ModTime})
	case tar.TypeSymlink:
		err = unix.Symlinkat(link, directory, leaf)
		if errors.Is(err, unix.EEXIST) {
			if err = unix.Unlinkat(directory, leaf, 0); err == nil {
				err = unix.Symlinkat(link, directory, leaf)
			}
		}
	case tar.TypeReg:
		err = w.file(directory, leaf, h, content)
	default:
		err = unix.EINVAL
	}
	return at(full, err)
}

// file writes a new file in place, and removes it when the copy fails. An
// existing file is replaced in one step.
func (w *treeWriter) file(directory int, leaf string, h *tar.Header, content io.Reader) (err error) {
	mode := uint32(h.Mode & 0o777)
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(directory, leaf, flags, mode)
	if errors.Is(err, unix.EEXIST) {
		return w.again(directory, leaf, h, content)
	}
	if err != nil {
		return full(err, directory)
	}
	defer func() {
		_ = unix.Close(fd)
		if err != nil {
			_ = unix.Unlinkat(directory, leaf, 0)
		}
	}()
	n, err := fill(fd, content, w.buffer)
	w.result.Bytes += n
	if err != nil {
		return full(err, fd)
	}
	return setTime(fd, h.ModTime)
}

func (w *treeWriter) again(directory int, leaf string, h *tar.Header, content io.Reader) error {
	var st unix.Stat_t
	if unix.Fstatat(directory, leaf, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if err := unix.Unlinkat(directory, leaf, 0); err != nil {
			return err
		}
	}
	mode := uint32(h.Mode & 0o777)
	n, err := replace(directory, leaf, &mode, mode, &h.ModTime, content, w.buffer)
	w.result.Bytes += n
	return err
}

// enter opens a directory of the tree, making what is missing.
func (w *treeWriter) enter(name string) (int, error) {
	if name == "" {
		return w.base, nil
	}
	if w.current >= 0 && name == w.where {
		return w.current, nil
	}
	w.leave()
	current := w.base
	for _, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." {
			return -1, unix.EINVAL
		}
		const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		next, err := unix.Openat(current, part, flags, 0)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(current, part, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = unix.Openat(current, part, flags, 0)
			}
		}
		if current != w.base {
			_ = unix.Close(current)
		}
		if err != nil {
			return -1, err
		}
		current = next
	}
	w.current, w.where = current, name
	return current, nil
}

// finish gives the directories their modes and times, the deepest first.
func (w *treeWriter) finish() error {
	for i := len(w.made) - 1; i >= 0; i-- {
		m := w.made[i]
		fd, err := w.enter(m.name)
		if err == nil {
			err = unix.Fchmod(fd, m.mode)
		}
		if err == nil {
			err = setTime(fd, m.time)
		}
		if err != nil {
			return at(w.root+"/"+m.name, err)
		}
	}
	return nil
}

// setTime sets the time of modification of an open file.
func setTime(fd int, modified time.Time) error {
	then := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(modified.UnixNano())}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&then[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
