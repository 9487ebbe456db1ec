package egress

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"sync"
)

// Addresses that stand for names come from 198.18.0.0/15, which is reserved
// (RFC 2544). The first 256 of them are not for names.
const (
	firstAddress  uint32 = 198<<24 | 18<<16
	reserved             = 256
	addresses            = 1 << 17
	guestAddress         = firstAddress + 1
	peerAddress          = firstAddress + 2
	maxNames             = 8192
	maxNameLength        = 253
)

// names gives every name that is asked for its own address, and finds the name
// of an address. The least recently used names are dropped; their addresses are
// reused only after all others have been.
type names struct {
	mu        sync.Mutex
	next      uint32
	byName    map[string]*list.Element
	byAddress map[uint32]*list.Element
	used      *list.List // of *named, the latest use first
}

type named struct {
	name    string
	address uint32
}

func newNames() *names {
	return &names{byName: map[string]*list.Element{}, byAddress: map[uint32]*list.Element{}, used: list.New()}
}

func (n *names) address(name string) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.byName[name]; e != nil {
		n.used.MoveToFront(e)
		return e.Value.(*named).address
	}
	if n.used.Len() >= maxNames {
		last := n.used.Back()
		old := n.used.Remove(last).(*named)
		delete(n.byName, old.name)
		delete(n.byAddress, old.address)
	}
	var address uint32
	for taken := true; taken; {
		address = firstAddress + reserved + n.next
		n.next = (n.next + 1) % (addresses - reserved)
		_, taken = n.byAddress[address]
	}
	e := n.used.PushFront(&named{name, address})
	n.byName[name] = e
	n.byAddress[address] = e
	return address
}

// host is the name that an address stands for; other addresses stand for
// themselves.
func (n *names) host(address uint32) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.byAddress[address]; e != nil {
		n.used.MoveToFront(e)
		return e.Value.(*named).name
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], address)
	return fmt.Sprintf("%d.%d.%d.%d", b[0], b[1], b[2], b[3])
}
