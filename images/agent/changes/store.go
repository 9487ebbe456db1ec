package changes

import (
	"fmt"
	"sort"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// maxText is the largest file whose text is compared.
	maxText = 256 << 10
	// maxCopies and copiedBytes limit what is copied for one mark: the files
	// that changed last. These are likely the user's work and not what was
	// installed before.
	maxCopies   = 2000
	copiedBytes = 16 << 20
)

// version identifies one content of one file: every change sets another time.
type version struct {
	inode         uint64
	changed, size int64
}

func (e *entry) version() version { return version{e.inode, e.changed, e.size} }

// candidate is a file that may be copied.
type candidate struct {
	path string
	version
}

// store keeps copies of small texts as they were at marks, because the upper
// directory has only their present content.
type store struct {
	directory int // on the disk, out of users' reach; -1: there is none
	room      func() int64

	mu      sync.Mutex
	users   map[version]int  // how many marks need a copy
	bytes   int64            // size of all copies
	notText map[version]bool // not text, so not copied
}

func newStore(directory int, room func() int64) *store {
	return &store{directory: directory, room: room, users: map[version]int{}, notText: map[version]bool{}}
}

func (v version) name() string { return fmt.Sprintf("%x-%x-%x", v.inode, v.changed, v.size) }

// keep copies what is not copied yet, the latest first, and returns what there
// is a copy of. The caller must drop each once.
func (s *store) keep(upper int, candidates []candidate) (kept []version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.directory < 0 {
		return nil
	}
	sort.Slice(candidates, func(i, j int) bool { return candidates[i].changed > candidates[j].changed })
	if len(candidates) > maxCopies {
		candidates = candidates[:maxCopies]
	}
	if len(s.notText) > 4*maxCopies {
		s.notText = map[version]bool{}
	}
	room := s.room()
	var total int64
	for _, c := range candidates {
		if total += c.size; total > copiedBytes {
			break
		}
		if s.users[c.version] == 0 && (s.notText[c.version] || !s.copy(upper, c, room)) {
			continue
		}
		s.users[c.version]++
		kept = append(kept, c.version)
	}
	return kept
}

// copy is called with mu held.
func (s *store) copy(upper int, c candidate, room int64) bool {
	if s.bytes+c.size > room {
		return false
	}
	fd := openFile(upper, c.path)
	if fd < 0 {
		return false
	}
	defer unix.Close(fd)
	text, whole := readAll(fd, maxText)
	now := look(fd, "")
	if !whole || now == nil || now.version() != c.version {
		return false // it is being written
	}
	if !isText(text) {
		s.notText[c.version] = true
		return false
	}
	copied, err := unix.Openat(s.directory, c.name(), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	defer unix.Close(copied)
	for rest := text; len(rest) > 0; {
		n, err := unix.Write(copied, rest)
		if err != nil && err != unix.EINTR {
			_ = unix.Unlinkat(s.directory, c.name(), 0)
			return false
		}
		if n > 0 {
			rest = rest[n:]
		}
	}
	s.bytes += c.size
	return true
}

// drop releases what keep returned.
func (s *store) drop(kept []version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range kept {
		if s.users[v]--; s.users[v] > 0 {
			continue
		}
		delete(s.users, v)
		s.bytes -= v.size
		_ = unix.Unlinkat(s.directory, v.name(), 0)
	}
}

// open opens a copy; -1 when there is none.
func (s *store) open(v version) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[v] == 0 {
		return -1
	}
	fd, err := unix.Openat(s.directory, v.name(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// readAll reads an open file. It is not whole when the file has more bytes than
// most, or cannot be read.
func readAll(fd int, most int) (content []byte, whole bool) {
	buffer := make([]byte, 0, 4096)
	for {
		if len(buffer) == cap(buffer) {
			buffer = append(buffer, 0)[:len(buffer)]
		}
		n, err := unix.Read(fd, buffer[len(buffer):cap(buffer)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, false
		case n == 0:
			return buffer, true
		default:
			if buffer = buffer[:len(buffer)+n]; len(buffer) > most {
				return nil, false
			}
		}
	}
}

// isText reports whether a patch can be made of a content.
func isText(content []byte) bool {
	for _, b := range content {
		if b == 0 {
			return false
		}
	}
	return utf8.Valid(content)
}

// equal compares two open files and subtracts the bytes that it reads from
// most. The result is not known when those run out, or a file cannot be read.
func equal(a, b int, most *int64) (same, known bool) {
	var buffers [2][64 << 10]byte
	for offset := int64(0); ; {
		n, err := full(a, buffers[0][:], offset)
		m, other := full(b, buffers[1][:], offset)
		if err != nil || other != nil {
			return false, false
		}
		if n != m || string(buffers[0][:n]) != string(buffers[1][:m]) {
			return false, true
		}
		if n == 0 {
			return true, true
		}
		offset += int64(n)
		if *most -= int64(n); *most < 0 {
			return false, false
		}
	}
}

func full(fd int, p []byte, offset int64) (total int, err error) {
	for total < len(p) {
		n, err := unix.Pread(fd, p[total:], offset+int64(total))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return total, err
		}
		if n == 0 {
			break
		}
		total += n
	}
	return total, nil
}
