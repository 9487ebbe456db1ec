package run

import (
	"strconv"

	"golang.org/x/sys/unix"

	"exec-sandbox/agent/channel"
	"exec-sandbox/agent/disk"
	"exec-sandbox/agent/quick"
)

// held is how much of an output is kept in memory before it needs a file.
const held = 1 << 20

// Overflow keeps what the host will not: an output from the middle of its
// limit on, in a file of the guest, once the output is longer than the limit.
type Overflow struct {
	disk      *disk.Disk
	directory int
	path      string // of the directory
	name      string

	limit, head int64 // the host keeps that much, and that much of the beginning
	total       int64
	held        []byte
	fd          int
	checked     int64 // total when the disk was last looked at
	over        bool  // nothing is kept any more
}

// NewOverflow is for one output of the stream with that number. It keeps
// nothing when the host did not ask for it.
func (r *Runner) NewOverflow(id uint32, name string, limit *int64, keep bool) *Overflow {
	o := &Overflow{disk: r.config.Disk, directory: r.outputs, path: r.config.Outputs, fd: -1}
	if limit == nil || o.directory < 0 || !keep {
		o.over = true
		return o
	}
	o.name = strconv.FormatUint(uint64(id), 10) + "." + name
	o.limit = *limit
	o.head = (o.limit + 1) / 2
	return o
}

// Write takes the next bytes.
func (o *Overflow) Write(payload []byte) {
	if o.over {
		return
	}
	start := o.total
	o.total += int64(len(payload))
	if o.total <= o.head {
		return
	}
	if start < o.head {
		payload = payload[o.head-start:]
	}
	if o.fd < 0 {
		o.held = append(o.held, payload...)
		if o.total <= o.limit && len(o.held) < held {
			return
		}
		payload, o.held = o.held, nil
		const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
		_ = quick.Remove(o.directory, o.name, 0)
		var err error
		if o.fd, err = quick.Open(o.directory, o.name, flags, 0o644); err != nil {
			o.fd = -1
			o.giveUp()
			return
		}
	}
	if err := writeAll(o.fd, payload); err != nil || o.crowds() {
		o.giveUp()
	}
}

// crowds reports that users need the rest of the disk for themselves.
func (o *Overflow) crowds() bool {
	if o.total-o.checked < held {
		return false
	}
	o.checked = o.total
	allowed, used, ok := o.disk.Space()
	return ok && allowed-used < allowed/8
}

func (o *Overflow) giveUp() {
	o.over, o.held = true, nil
	if o.fd >= 0 {
		quick.Close(o.fd)
		o.fd = -1
		_ = quick.Remove(o.directory, o.name, 0)
	}
}

// End says where the rest is; nil when the host has all, or nobody has it.
func (o *Overflow) End() *string {
	if o == nil || o.over {
		return nil
	}
	if o.total <= o.limit || o.fd < 0 {
		o.giveUp()
		return nil
	}
	o.over = true
	quick.Close(o.fd)
	path := o.path + "/" + o.name
	return &path
}

// watch forwards one output of an execution, and ends the execution when that
// is what its output limit is for.
func (i *interpreter) watch(e *execution, sub byte, o *Overflow) func(payload []byte) {
	var total int64
	told := e.request.OutputBytes == nil || !e.request.OutputFail
	return func(payload []byte) {
		o.Write(payload)
		total += int64(len(payload))
		if !told && total > *e.request.OutputBytes {
			told = true
			i.post(func() {
				if i.current == e && e.interrupted.IsZero() {
					i.interrupt()
				}
			})
		}
		e.stream.Send(sub, payload)
	}
}

// direct sends the outputs of an execution where they belong.
func (i *interpreter) direct(e *execution, s *slot) {
	for n, name := range [...]string{"stdout", "stderr"} {
		e.kept[n] = i.runner.NewOverflow(e.stream.ID(), name, e.request.OutputBytes, e.request.Keep)
	}
	s.stdout.Drain(i.watch(e, channel.Stdout, e.kept[0]))
	s.stderr.Drain(i.watch(e, channel.Stderr, e.kept[1]))
}
