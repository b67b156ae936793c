package rota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const benchKind Kind[struct {
	ID int `json:"id"`
}] = "bench"

// BenchmarkEnqueue measures enqueues from 1 and from 64 callers in turns, on the
// same file, and reports how many times as many 64 store as 1 does: what they
// gain from sharing commits.
func BenchmarkEnqueue(b *testing.B) {
	for _, durability := range []Durability{DurabilityFull, DurabilityNormal} {
		b.Run(string(durability), func(b *testing.B) {
			s := open(b, Config{Durability: durability})
			const slice = 300 * time.Millisecond
			var one, many []float64
			for b.Loop() {
				one = append(one, enqueueRate(b, s, 1, slice))
				many = append(many, enqueueRate(b, s, 64, slice))
			}
			b.ReportMetric(median(one), "jobs/s-1-caller")
			b.ReportMetric(median(many), "jobs/s-64-callers")
			b.ReportMetric(median(many)/median(one), "ratio")
		})
	}
}

// enqueueRate is how many jobs per second that many callers store, each waiting
// for its own before the next.
func enqueueRate(b *testing.B, s *Scheduler, callers int, d time.Duration) float64 {
	ctx := context.Background()
	var n atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range callers {
		wg.Go(func() {
			for time.Since(began) < d {
				if _, err := benchKind.Enqueue(ctx, s, struct {
					ID int `json:"id"`
				}{1}, EnqueueOptions{}); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(began).Seconds()
}

// BenchmarkClaim measures the claim of 64 due jobs beside a million rows that
// it must not touch, in turns with the same claim in an otherwise empty table,
// and reports the ratio.
func BenchmarkClaim(b *testing.B) {
	const million = 1_000_000
	empty := newClaimBench(b)
	for _, c := range []struct {
		name string
		fill func(*claimBench)
	}{
		{"finished", func(c *claimBench) { fill(b, c.s, "succeeded", "other", million) }},
		{"paused", func(c *claimBench) {
			fill(b, c.s, "pending", "other", million)
			c.handle("other", Policy{})
			if err := c.s.Pause(context.Background(), "other", By{}); err != nil {
				b.Fatal(err)
			}
		}},
		{"at_its_limit", func(c *claimBench) {
			fill(b, c.s, "pending", "other", million)
			c.handle("other", Policy{MaxRunning: 1})
			c.t.perKind["other"] = 1
		}},
		{"without_a_handler", func(c *claimBench) { fill(b, c.s, "pending", "other", million) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			full := newClaimBench(b)
			c.fill(full)
			var base, beside []float64
			for b.Loop() {
				base = append(base, empty.claim(b))
				beside = append(beside, full.claim(b))
			}
			b.ReportMetric(median(base)/1e3, "µs-alone")
			b.ReportMetric(median(beside)/1e3, "µs-beside")
			b.ReportMetric(median(beside)/median(base), "ratio")
		})
	}
}

// claimBench is a table with 64 due jobs, and a term that can claim them.
type claimBench struct {
	s *Scheduler
	t *term
}

func newClaimBench(b *testing.B) *claimBench {
	c := &claimBench{s: open(b, Config{})}
	fill(b, c.s, "pending", string(benchKind), 64)
	c.handle(string(benchKind), Policy{})
	c.t = newTerm(c.s, &contest{s: c.s}, 1)
	return c
}

func (c *claimBench) handle(kind string, p Policy) {
	Handle(c.s, Kind[struct{}](kind), func(context.Context, *Job, struct{}) error { return nil }, p)
}

var errUndo = errors.New("undo")

// claim is the median time of some claims, each of them undone.
func (c *claimBench) claim(b *testing.B) float64 {
	var times []float64
	for range 5 {
		kinds, _ := c.t.wants(time.Now())
		began := time.Now()
		err := c.s.store.Update(context.Background(), func(ctx context.Context, tx Tx) error {
			f, err := c.t.claimTx(ctx, tx, kinds, 64, false, time.Now())
			if err != nil {
				return err
			}
			if len(f.jobs) != 64 {
				return fmt.Errorf("claimed %d jobs, not 64", len(f.jobs))
			}
			return errUndo
		})
		times = append(times, float64(time.Since(began)))
		if !errors.Is(err, errUndo) {
			b.Fatal(err)
		}
	}
	return median(times)
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}
