package egress

import (
	"encoding/binary"
	"io"
	"net"
	"time"
)

const (
	maxQuery   = 512
	maxClients = 16
	clientTime = 5 * time.Second
)

// answerPackets answers DNS over UDP.
func (g *Gateway) answerPackets(socket net.PacketConn) {
	buffer := make([]byte, 4096)
	for {
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			g.log("reading a DNS query: %v", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if n > maxQuery {
			continue
		}
		if reply := answer(buffer[:n], g.names); reply != nil {
			_, _ = socket.WriteTo(reply, from)
		}
	}
}

// answerStreams answers DNS over TCP, for a few clients at a time.
func (g *Gateway) answerStreams(listener net.Listener) {
	places := make(chan struct{}, maxClients)
	for {
		conn, err := listener.Accept()
		if err != nil {
			g.log("accepting a DNS client: %v", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		places <- struct{}{}
		go func() { // ends at most clientTime after the client's last query
			defer func() { <-places }()
			defer conn.Close()
			g.answerClient(conn)
		}()
	}
}

func (g *Gateway) answerClient(conn net.Conn) {
	var length [2]byte
	buffer := make([]byte, maxQuery)
	for {
		_ = conn.SetDeadline(time.Now().Add(clientTime))
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		if n > maxQuery {
			return
		}
		if _, err := io.ReadFull(conn, buffer[:n]); err != nil {
			return
		}
		reply := answer(buffer[:n], g.names)
		if reply == nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(nil, uint16(len(reply)))
		if _, err := conn.Write(append(framed, reply...)); err != nil {
			return
		}
	}
}
