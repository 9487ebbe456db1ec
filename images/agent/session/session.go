package session

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/boot"
	"exec-sandbox/agent/changes"
	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/dial"
	"exec-sandbox/agent/egress"
	"exec-sandbox/agent/files"
	"exec-sandbox/agent/identity"
	"exec-sandbox/agent/interpreter"
	"exec-sandbox/agent/process"
	"exec-sandbox/agent/program"
)

// settleWait is how long sealing may wait for interpreters to become idle.
const settleWait = 60 * time.Second

// Session serves whichever host is connected.
type Session struct {
	runner  *interpreter.Runner
	spawner *process.Spawner
	files   *files.Service
	changes *changes.Tracker
	gateway *egress.Gateway
	version string
	kernel  string
	build   bool // the machine is being made into a template
	served  bool // it has had a session
	unique  bool // its random generators have fresh entropy, and no user code has run
}

// New returns a session that no host has greeted.
func New(runner *interpreter.Runner, spawner *process.Spawner, files *files.Service, changes *changes.Tracker, gateway *egress.Gateway, version string) *Session {
	s := &Session{runner: runner, spawner: spawner, files: files, changes: changes, gateway: gateway, version: version}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		s.kernel = unix.ByteSliceToString(name.Release[:])
	}
	return s
}

// Announcement is the guest's HELLO after a boot.
func (s *Session) Announcement() any { return s.greeting() }

func (s *Session) greeting() greeting {
	return greeting{Protocol: protocol, Ready: true, Languages: s.runner.Languages(), Kernel: s.kernel, Agent: s.version}
}

// Hello applies the host's greeting. It acknowledges each part separately: the
// host destroys a machine that lacks one.
func (s *Session) Hello(payload []byte) (any, error) {
	h, err := parseHello(payload)
	if err != nil {
		return nil, err
	}
	did := func(what string, err error) bool {
		if err != nil {
			boot.Log("%s: %v", what, err)
		}
		return err == nil
	}
	if h.purpose == "wake" {
		// The machine is the same as before and its interpreters keep their
		// random numbers; only time has passed.
		g := s.greeting()
		g.Acknowledged = &acknowledged{
			Entropy: did("entropy", identity.AddEntropy(h.entropy)),
			Clock:   did("clock", identity.SetClock(h.clock)),

			Hostname: true, MachineID: true, Env: true, Limits: true, Network: true,
		}
		return g, nil
	}
	s.build = h.purpose == "build"
	// A rehearsal was given entropy of its own, which no user code has used.
	keeps := h.purpose == "claim"
	if keeps && !s.unique {
		return nil, errors.New("only a machine that was rehearsed can be claimed")
	}
	s.unique = h.purpose == "rehearsal"
	// Entropy first: nothing may run that could still use the template's.
	ack := acknowledged{
		Entropy:   did("entropy", identity.AddEntropy(h.entropy)),
		Clock:     did("clock", identity.SetClock(h.clock)),
		Hostname:  did("hostname", identity.SetHostname(boot.Hosts, h.hostname)),
		MachineID: did("machine id", identity.SetMachineID(boot.MachineID, h.machineID)),
		Env:       true, // the runner adds it to everything that runs
	}
	ack.Limits = did("limits", s.runner.Greet(interpreter.Session{
		Defaults: program.Defaults{
			Env:           h.env,
			MemoryBytes:   h.memoryBytes,
			Processes:     h.processes,
			FileSizeBytes: h.fileSize,
		},
		DiskBytes: h.diskBytes,
		Secret:    h.entropy,
		Unique:    keeps,
	}))
	ack.Network = did("network", s.connect(h.network))
	// Changes of an earlier session, from which this one continues, do not
	// count; nor do those that the network just made.
	if s.served || h.network != nil {
		s.changes.Start()
	}
	s.served = s.served || h.purpose == "session" || keeps
	g := s.greeting()
	g.Acknowledged = &ack
	return g, nil
}

// connect connects the guest to the network, if the host grants that.
func (s *Session) connect(granted *network) error {
	if granted == nil {
		return nil
	}
	if err := egress.SetTrust(granted.Authorities); err != nil {
		return err
	}
	s.runner.AddEnv(granted.Env)
	return s.gateway.Open()
}

// Open passes a request to the package that serves its method.
func (s *Session) Open(stream *channel.Stream, payload []byte) error {
	method, err := methodOf(payload)
	if err != nil {
		return stream.Invalid(err)
	}
	switch {
	case method == "exec":
		return s.runner.Exec(stream, payload)
	case method == "spawn":
		return s.spawner.Spawn(stream, payload)
	case method == "network":
		return s.network(stream, payload)
	case method == "seal":
		return s.seal(stream, payload)
	case changes.Serves(method):
		return s.changes.Open(stream, method, payload)
	case files.Serves(method):
		return s.files.Open(stream, payload)
	case dial.Serves(method):
		return dial.Open(stream, payload)
	}
	if err := decode(payload, &struct{}{}); err != nil {
		return stream.Invalid(err)
	}
	stream.Reset("unsupported", fmt.Sprintf("no method %q", method))
	return nil
}

// network connects a session that was greeted without a network.
func (s *Session) network(stream *channel.Stream, payload []byte) error {
	granted, err := decodeNetwork(payload)
	if err != nil {
		return stream.Invalid(err)
	}
	if err := s.connect(granted); err != nil {
		stream.Reset("failed", err.Error())
		return nil
	}
	stream.End(struct{}{})
	return nil
}

// seal brings a template into the state in which each clone starts.
func (s *Session) seal(stream *channel.Stream, payload []byte) error {
	if err := decode(payload, &struct{}{}); err != nil {
		return stream.Invalid(err)
	}
	if !s.build {
		stream.Reset("invalid", "only a machine greeted for building can be sealed")
		return nil
	}
	go func() { // ends within settleWait
		if err := s.runner.Settle(settleWait); err != nil {
			stream.Reset("failed", err.Error())
			return
		}
		s.changes.Start()
		stream.End(struct{}{})
	}()
	return nil
}
