package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// pipes is a network in memory: connections on which fake time works, since who
// waits on one waits on a channel and not on the system.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	close sync.Once
}

func newPipes() *pipes {
	return &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return new(net.UnixAddr) }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func TestTheRealScheduleIsKeptToTheSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		began := time.Now()
		p := newPipes()
		all, err := run(t.Context(), &out, network{p, p.dial}, guests, 1)
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		i := slices.IndexFunc(all, func(in invited) bool { return in.name == "gita" })
		evidence := all[i].evidence
		if len(evidence) != 8 {
			t.Fatalf("%d attempts, want 8", len(evidence))
		}
		for n, seconds := range []int{10, 20, 40, 80, 160, 320, 640} {
			a, base := evidence[n], time.Duration(seconds)*time.Second
			delay := a.NextAt.Sub(a.FinishedAt)
			if delay < base || delay > base+9*time.Second || delay%time.Second != 0 {
				t.Errorf("delay after attempt %d: %v, want %v and a whole 0 to 9 s", n+1, delay, base)
			}
			if a.DelayMin != base || a.DelayMax != base+9*time.Second || a.Bound != 8 {
				t.Errorf("evidence of attempt %d: range %v to %v, bound %d; want %v to %v, 8",
					n+1, a.DelayMin, a.DelayMax, a.Bound, base, base+9*time.Second)
			}
			if late := evidence[n+1].ClaimedAt.Sub(a.NextAt); late < 0 || late > time.Millisecond {
				t.Errorf("attempt %d began %v after its time", n+2, late)
			}
		}
		if took := time.Since(began); took < 1270*time.Second || took > 1270*time.Second+7*9*time.Second+5*time.Second {
			t.Errorf("the whole took %v, want 1270 s and up to 63 s of jitter", took)
		}
		if strings.Contains(out.String(), "times as fast") {
			t.Errorf("the real schedule is said to be another:\n%s", &out)
		}
	})
}

func TestEveryWayADeliveryCanEndIsClassifiedAsWhatItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newPipes()
		all, err := run(t.Context(), &out, network{p, p.dial}, guests, 1)
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		firsts := map[string]string{
			"ann":   "succeeded ok succeeded",
			"ben":   "retry error retry 451",
			"cleo":  "failed permanent permanent 550",
			"dora":  "retry error retry not sent: .*timeout",
			"emil":  "unknown timeout unknown after the message: .*timeout",
			"fritz": "unknown unknown unknown after the message: EOF",
			"gita":  "retry error retry after the message: 452",
		}
		for _, in := range all {
			a := in.evidence[0]
			got := fmt.Sprint(a.Outcome, " ", a.Class, " ", a.Reason, " ", a.Error)
			if ok, _ := regexp.MatchString("^"+firsts[in.name], got); !ok {
				t.Errorf("%s: attempt 1 is %q, want %q", in.name, got, firsts[in.name])
			}
			for _, a := range in.evidence {
				if id := fmt.Sprintf(`"message_id":"%s@taskboard.example"`, in.job.IdempotencyKey); !strings.Contains(string(a.Note), id) {
					t.Errorf("%s: attempt %d carries another Message-ID: %s, want %s", in.name, a.Number, a.Note, id)
				}
				line := fmt.Sprintf("%s +%d of 8 +%s", in.name, a.Number, a.Outcome)
				if n := len(regexp.MustCompile(line).FindAllString(out.String(), -1)); n != 1 {
					t.Errorf("%d lines match %q, want one for each attempt:\n%s", n, line, &out)
				}
			}
		}
	})
}

func TestItRunsOverTCPAndLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir) // what os.MkdirTemp reads on Unix
	t.Setenv("TMP", dir)    // and on Windows
	var out bytes.Buffer
	if err := runOnTCP(t.Context(), &out, 1000); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"This run is 1000 times as fast, and without the 0 to 9 s", "(640 s)", "All of it is as it should be"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &out)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestItFailsWhenSomethingIsNotAsItShouldBe(t *testing.T) {
	ann := guests[0]
	for name, c := range map[string]struct {
		change func(*guest)
		want   string
	}{
		"a mail that was to arrive did not":    {func(g *guest) { g.plan = []treatment{refuseForGood} }, "mails: got 0, want 1"},
		"a mail came twice":                    {func(g *guest) { g.plan = []treatment{dropAnswer, accept} }, "duplicates: got 1, want 0"},
		"more attempts were needed than meant": {func(g *guest) { g.plan = []treatment{refuseForNow, accept} }, "attempts: got 2, want 1"},
		"a job ended in another state":         {func(g *guest) { g.state = rota.Dead }, "state: got succeeded, want dead"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := ann
				c.change(&g)
				p := newPipes()
				_, err := run(t.Context(), new(bytes.Buffer), network{p, p.dial}, []guest{g}, 1)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want an error with %q", err, c.want)
				}
			})
		})
	}
}

func TestItEndsWhenItIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p := newPipes()
		_, err := run(ctx, new(bytes.Buffer), network{p, p.dial}, guests, 1)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}
