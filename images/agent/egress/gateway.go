// Package egress gives the guest access to the network through the host. The
// machine has no network device: a tunnel device ends in this process, which
// asks the host for every connection and joins it to a stream of the channel.
//
// Only the first packet of a connection needs a decision. It is held back until
// the host has answered, so a program's connect gets the host's own answer. A
// granted connection goes to a listener of the agent's, by rewriting the
// addresses of its packets, so that the kernel implements TCP on both sides.
package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/refusals"
)

const (
	listenerPort = 1
	// maxFlows limits the connections that are open or asked for. maxKept
	// limits these together with the ones that have ended, which are kept for
	// keptFor because their last packets must still be delivered.
	maxFlows  = 512
	maxKept   = 4096
	keptFor   = time.Minute
	joinedBy  = 10 * time.Second
	firstPort = 1024
)

// Gateway is the tunnel and all connections through it.
type Gateway struct {
	conn  *channel.Conn
	log   func(string, ...any)
	names *names

	refusals *refusals.Tracker

	mu     sync.Mutex
	device *os.File
	flows  map[key]*flow
	ports  map[uint16]*flow
	next   uint16
	live   int
}

// key identifies a connection of the guest, whose own address is always the
// same.
type key struct {
	target uint32
	port   uint16
	local  uint16
}

// New returns a gateway that is not open.
func New(refused *refusals.Tracker, log func(string, ...any)) *Gateway {
	return &Gateway{
		log: log, refusals: refused, names: newNames(), flows: map[key]*flow{}, ports: map[uint16]*flow{}, next: firstPort,
	}
}

// Attach sets the channel on which connections leave.
func (g *Gateway) Attach(conn *channel.Conn) { g.conn = conn }

// Open makes the device and starts serving it; once it is open, Open does
// nothing.
func (g *Gateway) Open() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.device != nil {
		return nil
	}
	device, err := openDevice()
	if err != nil {
		return err
	}
	open := []interface{ Close() error }{device}
	fail := func(err error) error {
		for _, it := range open {
			_ = it.Close()
		}
		return err
	}
	config := net.ListenConfig{KeepAlive: -1}
	listener, err := config.Listen(context.Background(), "tcp4", fmt.Sprintf("198.18.0.1:%d", listenerPort))
	if err != nil {
		return fail(fmt.Errorf("listening for connections: %w", err))
	}
	open = append(open, listener)
	packets, err := net.ListenPacket("udp4", "127.0.0.1:53")
	if err != nil {
		return fail(fmt.Errorf("listening for names: %w", err))
	}
	open = append(open, packets)
	streams, err := net.Listen("tcp4", "127.0.0.1:53")
	if err != nil {
		return fail(fmt.Errorf("listening for names: %w", err))
	}
	g.device = device
	// All of these run as long as the machine.
	go g.read(device)
	go g.accept(listener)
	go g.answerPackets(packets)
	go g.answerStreams(streams)
	return nil
}

// read handles what the guest sends.
func (g *Gateway) read(device *os.File) {
	buffer := make([]byte, mtu)
	for {
		n, err := device.Read(buffer)
		if err != nil {
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			g.log("the tunnel has ended: %v", err)
			return
		}
		p, ok := parse(buffer[:n])
		if !ok || p.source() != guestAddress {
			continue
		}
		if reply := g.handle(p); reply != nil {
			g.send(reply)
		}
	}
}

func (g *Gateway) send(b []byte) {
	// A packet for which there is no room is lost, as on any network.
	_, _ = g.device.Write(b)
}

// handle returns the packet to send in answer to a packet, or nil.
func (g *Gateway) handle(p packet) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.sourcePort() == listenerPort {
		f := g.ports[p.targetPort()]
		if p.destination() != peerAddress || f == nil {
			return nil
		}
		p.rewrite(f.key.target, guestAddress, f.key.port, f.key.local)
		return p.bytes
	}
	k := key{target: p.destination(), port: p.targetPort(), local: p.sourcePort()}
	f := g.flows[k]
	first := p.flags()&(flagSyn|flagAck|flagRst) == flagSyn
	switch {
	case f != nil && f.over && first:
		g.forget(f)
		return g.begin(k, p)
	case f == nil && first:
		return g.begin(k, p)
	case f == nil:
		if p.flags()&flagRst != 0 {
			return nil
		}
		return reset(p)
	case f.port == 0: // the host is still being asked
		return nil
	default:
		if p.flags()&flagRst != 0 {
			// The agent may not be reading from it, and so not see its end.
			f.abort()
		}
		p.rewrite(peerAddress, guestAddress, f.port, listenerPort)
		return p.bytes
	}
}

// begin asks the host for a connection. Called with mu held.
func (g *Gateway) begin(k key, p packet) []byte {
	if g.live >= maxFlows {
		return reset(p)
	}
	g.sweep()
	f := newFlow(g, k, append([]byte{}, p.bytes...))
	g.flows[k] = f
	g.live++
	f.stream = g.conn.Open(request{Method: "connect", Host: g.names.host(k.target), Port: k.port}, f)
	if f.stream == nil { // no host has greeted us
		g.finish(f)
		g.forget(f)
		return unreachable(p, netUnreachable)
	}
	return nil
}

type request struct {
	Method string `json:"method"`
	Host   string `json:"host"`
	Port   uint16 `json:"port"`
}

// finish marks a flow as ended. Called with mu held.
func (g *Gateway) finish(f *flow) {
	if !f.over {
		f.over = true
		f.ended = time.Now()
		g.live--
	}
}

// forget is called with mu held, for a flow that is over.
func (g *Gateway) forget(f *flow) {
	if g.flows[f.key] == f {
		delete(g.flows, f.key)
	}
	if f.port != 0 && g.ports[f.port] == f {
		delete(g.ports, f.port)
	}
}

// sweep forgets flows that ended a while ago, and older ones when there are too
// many. Called with mu held.
func (g *Gateway) sweep() {
	if len(g.flows) < maxKept/8 {
		return
	}
	crowded := len(g.flows) >= maxKept
	for _, f := range g.flows {
		if f.over && (crowded || time.Since(f.ended) > keptFor) {
			g.forget(f)
		}
	}
}

// grant delivers a flow's first packet.
func (g *Gateway) grant(f *flow) {
	g.mu.Lock()
	if f.over || f.port != 0 {
		g.mu.Unlock()
		return
	}
	for g.ports[g.next] != nil || g.next < firstPort {
		g.next++
	}
	f.port = g.next
	g.next++
	g.ports[f.port] = f
	p, _ := parse(f.first)
	f.first = nil
	p.rewrite(peerAddress, guestAddress, f.port, listenerPort)
	f.patience = time.AfterFunc(joinedBy, func() { g.abandon(f) })
	g.mu.Unlock()
	g.send(p.bytes)
}

// record records that a connection is refused.
func (g *Gateway) record(k key) {
	c := refusals.Connection{Host: g.names.host(k.target), Local: k.local, Port: k.port}
	binary.BigEndian.PutUint32(c.Target[:], k.target)
	g.refusals.Record(c)
}

// refuse answers a flow's first packet with an error.
func (g *Gateway) refuse(f *flow, errno string) {
	g.mu.Lock()
	if f.over || f.port != 0 {
		g.mu.Unlock()
		return
	}
	p, _ := parse(f.first)
	g.finish(f)
	g.forget(f)
	g.mu.Unlock()
	switch errno {
	case "ENETUNREACH":
		g.send(unreachable(p, netUnreachable))
	case "EHOSTUNREACH":
		g.send(unreachable(p, hostUnreachable))
	default:
		g.send(reset(p))
	}
}

// abandon ends a flow that has not been joined in time.
func (g *Gateway) abandon(f *flow) {
	g.mu.Lock()
	joined := f.joined || f.over
	g.finish(f)
	g.mu.Unlock()
	if !joined {
		f.stream.Reset("failed", "the connection was not used in time")
	}
}

// accept joins connections to the streams that were opened for them.
func (g *Gateway) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			g.log("accepting a connection: %v", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		tcp := conn.(*net.TCPConn)
		remote := tcp.RemoteAddr().(*net.TCPAddr)
		var f *flow
		g.mu.Lock()
		if at := remote.IP.To4(); at != nil && [4]byte{at[0], at[1], at[2], at[3]} == [4]byte{198, 18, 0, 2} {
			f = g.ports[uint16(remote.Port)]
		}
		if f != nil && (f.joined || f.over) {
			f = nil
		}
		if f != nil {
			f.joined = true
		}
		g.mu.Unlock()
		if f == nil {
			_ = tcp.Close()
			continue
		}
		f.patience.Stop()
		go f.run(tcp) // ends with the connection or the stream
	}
}
