package interpreter

import (
	"testing"
	"time"

	"exec-sandbox/agent/cgroup"
	"exec-sandbox/agent/evidence"
)

func TestTimeLimitThatWasHit(t *testing.T) {
	timeout := int64(500)
	x := execution{request: &Request{TimeMs: &timeout}, started: true, timedOut: true, began: time.Now().Add(-time.Second)}
	e := &evidence.Evidence{}
	x.measure(e, cgroup.Counters{})
	if len(e.Limits) != 1 || e.Limits[0].Allowed != 500 || e.Limits[0].Observed < 1000 {
		t.Errorf("time: got %+v", e.Limits)
	}
}
