package files

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/channel"
)

// ChildCommand is the agent's first argument when it runs as the child that
// does the work.
const ChildCommand = "file-child"

const (
	// linkFD is the child's end of the connection to the agent.
	linkFD = 3
	// shield is the child's real and saved user. It owns nothing. It keeps the
	// user's programs, which have the same effective user, from signalling,
	// stopping or tracing the child.
	shield = 64999
)

// Child is that process. It returns only with an error.
func Child(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("%s: uid, gid and home are needed", ChildCommand)
	}
	uid, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("reading the uid: %w", err)
	}
	gid, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("reading the gid: %w", err)
	}
	runtime.GOMAXPROCS(1)
	unix.Umask(0) // modes are exactly as requested
	limit := unix.Rlimit{Cur: 65536, Max: 65536}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("setting the limit of open files: %w", err)
	}
	if uid != 0 {
		if err := become(uid, gid); err != nil {
			return err
		}
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("entering the root directory: %w", err)
	}
	if err := unix.SetNonblock(linkFD, true); err != nil {
		return fmt.Errorf("preparing the link: %w", err)
	}
	unix.CloseOnExec(linkFD)
	conn := channel.New(os.NewFile(linkFD, "link"), server{home: args[2]}, func(string) {})
	return conn.Serve()
}

// become gives up every privilege that the user does not have, in every thread,
// and checks that none is left.
func become(uid, gid int) error {
	if err := syscall.Setgroups([]int{}); err != nil {
		return fmt.Errorf("dropping groups: %w", err)
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("becoming group %d: %w", gid, err)
	}
	// None of the three stays 0, so the kernel drops every capability as well.
	if err := syscall.Setresuid(shield, uid, shield); err != nil {
		return fmt.Errorf("becoming user %d: %w", uid, err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	if caps[0].Effective|caps[1].Effective|caps[0].Permitted|caps[1].Permitted != 0 {
		return errors.New("capabilities are left")
	}
	return nil
}

// server is the child's side of the link.
type server struct{ home string }

func (server) Hello([]byte) (any, error) { return struct{}{}, nil }

func (v server) Open(s *channel.Stream, payload []byte) error {
	r, err := Decode(payload)
	if err != nil {
		return s.Invalid(err)
	}
	do := operations[r.Method]
	if do == nil {
		s.Reset("unsupported", fmt.Sprintf("no method %q", r.Method))
		return nil
	}
	r.Path, r.To = v.absolute(r.Path), v.absolute(r.To)
	in := newInbox(s)
	s.Receive(in)
	go func() { // ends with the operation; if the host leaves, its waits end
		result, err := do(r, in)
		switch {
		case errors.Is(err, errCancelled):
		case err != nil:
			s.End(failed{failure(err)})
		default:
			s.End(result)
		}
	}()
	return nil
}

func (v server) absolute(path Name) Name {
	if path == "" || path[0] == '/' {
		return path
	}
	return Name(v.home+"/") + path
}

// operations return END's payload, or an error.
var operations = map[string]func(*Request, *inbox) (any, error){
	"file.read":          read,
	"file.write":         write,
	"file.list":          list,
	"file.stat":          stat,
	"file.makeDirectory": makeDirectory,
	"file.remove":        remove,
	"file.rename":        rename,
	"file.watch":         watch,
	"tree.read":          readTree,
	"tree.write":         writeTree,
}
