package files

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/channel"
)

// Starter starts processes for the first process of a machine.
type Starter interface {
	Start(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error)
}

// Service is the agent's side. It has one child for the user, which runs from
// the start, and one for root, which is started when it is needed.
type Service struct {
	starter  Starter
	uid, gid int
	home     string
	log      func(format string, args ...any)

	mu    sync.Mutex
	links map[string]*link // by user
}

// New returns a service without any child.
func New(starter Starter, uid, gid int, home string, log func(string, ...any)) *Service {
	return &Service{starter: starter, uid: uid, gid: gid, home: home, log: log, links: map[string]*link{}}
}

// Serves reports whether a method belongs to this package.
func Serves(method string) bool {
	return strings.HasPrefix(method, "file.") || strings.HasPrefix(method, "tree.")
}

// Start starts the user's child.
func (v *Service) Start() error {
	_, err := v.link("user")
	return err
}

// Open hands a request to the child of the user it names.
func (v *Service) Open(s *channel.Stream, payload []byte) error {
	r, err := Decode(payload)
	if err != nil {
		return s.Invalid(err)
	}
	user := "user"
	if r.User == "root" {
		user = "root"
	}
	l, err := v.link(user)
	if err != nil {
		s.Reset("failed", err.Error())
		return nil
	}
	l.open(s, payload)
	return nil
}

func (v *Service) link(user string) (*link, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if l := v.links[user]; l != nil && !l.ended() {
		return l, nil
	}
	l, err := v.start(user)
	if err != nil {
		return nil, fmt.Errorf("starting the file service: %w", err)
	}
	v.links[user] = l
	return l, nil
}

func (v *Service) start(user string) (*link, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pair[1])
	uid, gid := v.uid, v.gid
	if user == "root" {
		uid, gid = 0, 0
	}
	argv := []string{"/proc/self/exe", ChildCommand, strconv.Itoa(uid), strconv.Itoa(gid), v.home}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(pair[0])
		return nil, err
	}
	defer unix.Close(null)
	pid, exit, err := v.starter.Start(argv, &syscall.ProcAttr{
		Dir:   "/",
		Files: []uintptr{uintptr(null), uintptr(null), 2, uintptr(pair[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err == nil {
		err = unix.SetNonblock(pair[0], true)
	}
	if err != nil {
		_ = unix.Close(pair[0])
		return nil, err
	}
	l := &link{file: os.NewFile(uintptr(pair[0]), "files"), relays: map[uint32]*relay{}}
	l.filled.L = &l.mu
	l.out = channel.AppendGreeting(nil, channel.Epoch{1}, []byte("{}"))
	go l.write() // ends with the child
	go func() {  // ends with the child
		err := l.read()
		l.end()
		_ = unix.Kill(pid, unix.SIGKILL)
		<-exit
		v.log("the file service for %s ended: %v", user, err)
	}()
	return l, nil
}

// link is the agent's end of the connection to one child. On it the agent acts
// as the host.
type link struct {
	file *os.File

	mu     sync.Mutex
	filled sync.Cond
	out    []byte
	last   uint32
	relays map[uint32]*relay
	dead   bool
}

// relay joins a stream of the host's with one of the child's.
type relay struct {
	link   *link
	stream *channel.Stream
	id     uint32

	// Guarded by link.mu.
	waiting  []frame // for the host; the child's credit limits them
	draining bool
	consumed int // by the host, not granted to the child yet
}

type frame struct {
	kind    channel.Kind
	sub     byte
	payload []byte
}

func (l *link) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// open is called on the host connection's reading goroutine.
func (l *link) open(s *channel.Stream, payload []byte) {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		s.Reset("failed", "the file service has ended")
		return
	}
	l.last += 2
	r := &relay{link: l, stream: s, id: l.last - 1}
	l.relays[r.id] = r
	l.put(r.id, channel.Open, 0, payload)
	l.mu.Unlock()
	s.Receive(r)
}

// put is called with mu held.
func (l *link) put(id uint32, kind channel.Kind, flags byte, payload []byte) {
	l.out = channel.AppendFrame(l.out, id, kind, flags, payload)
	l.filled.Signal()
}

func (l *link) write() {
	var sending []byte
	for {
		l.mu.Lock()
		for len(l.out) == 0 && !l.dead {
			l.filled.Wait()
		}
		if l.dead {
			l.mu.Unlock()
			return
		}
		sending, l.out = l.out, sending[:0]
		l.mu.Unlock()
		if _, err := l.file.Write(sending); err != nil {
			return // reading fails as well
		}
	}
}

// end resets all streams, because the child is gone.
func (l *link) end() {
	l.mu.Lock()
	l.dead = true
	l.filled.Broadcast()
	relays := l.relays
	l.relays = nil
	l.mu.Unlock()
	for _, r := range relays {
		r.stream.Reset("failed", "the file service has ended")
	}
	_ = l.file.Close()
}

func (l *link) read() error {
	decoder := channel.NewDecoder(l.file)
	for {
		f, _, err := decoder.Next()
		if err != nil {
			return err
		}
		if f == nil || f.Stream == 0 {
			continue
		}
		l.mu.Lock()
		r := l.relays[f.Stream]
		if r != nil && f.Kind == channel.Credit && len(f.Payload) == 4 {
			r.stream.Grant(int(binary.LittleEndian.Uint32(f.Payload)))
		} else if r != nil {
			r.take(f)
		}
		l.mu.Unlock()
	}
}

// take is called with link.mu held and must not wait.
func (r *relay) take(f *channel.Frame) {
	payload := f.Payload
	if !r.draining {
		if f.Kind != channel.Data {
			r.finish(f.Kind, payload)
			return
		}
		sent := r.stream.TrySend(f.Flags, payload)
		r.grant(sent)
		if payload = payload[sent:]; len(payload) == 0 {
			return
		}
		r.draining = true
		go r.drain() // ends when nothing waits, or with the stream
	}
	r.waiting = append(r.waiting, frame{f.Kind, f.Flags, append([]byte(nil), payload...)})
}

// drain sends what waits, as the host grants credit.
func (r *relay) drain() {
	l := r.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(r.waiting) > 0 {
		next := r.waiting[0]
		r.waiting = r.waiting[1:]
		if next.kind != channel.Data {
			r.finish(next.kind, next.payload)
			return
		}
		l.mu.Unlock()
		sent := r.stream.Send(next.sub, next.payload)
		l.mu.Lock()
		if !sent {
			return
		}
		r.grant(len(next.payload))
	}
	r.draining = false
}

// finish forwards the child's END or RESET; called with link.mu held.
func (r *relay) finish(kind channel.Kind, payload []byte) {
	delete(r.link.relays, r.id)
	if kind == channel.End {
		r.stream.End(json.RawMessage(payload))
		return
	}
	var reset struct{ Code, Message string }
	_ = json.Unmarshal(payload, &reset)
	r.stream.Reset(reset.Code, reset.Message)
}

// grant grants the child credit for what the host took; called with link.mu
// held.
func (r *relay) grant(n int) {
	r.consumed += n
	if r.consumed < channel.InitialCredit/2 || r.link.dead {
		return
	}
	var payload [4]byte
	binary.LittleEndian.PutUint32(payload[:], uint32(r.consumed))
	r.consumed = 0
	r.link.put(r.id, channel.Credit, 0, payload[:])
}

// Data, Note and Reset are called on the host connection's reading goroutine.

func (r *relay) Data(sub byte, payload []byte, last bool) {
	if last {
		sub |= channel.Last
	}
	r.pass(channel.Data, sub, payload)
}

// Note forwards an event.
func (r *relay) Note(payload []byte) { r.pass(channel.Note, 0, payload) }

// Reset cancels the child's work.
func (r *relay) Reset() {
	r.pass(channel.Reset, 0, []byte("{}"))
	r.link.mu.Lock()
	delete(r.link.relays, r.id)
	r.link.mu.Unlock()
}

func (r *relay) pass(kind channel.Kind, flags byte, payload []byte) {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	if _, known := r.link.relays[r.id]; known {
		r.link.put(r.id, kind, flags, payload)
	}
}
