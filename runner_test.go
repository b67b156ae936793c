package rota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fewer is n, or what a test does of it under the race detector, where SQLite is
// some twenty times as slow.
func fewer(n, underRace int) int {
	if raceEnabled {
		return underRace
	}
	return n
}

// diary is what handlers did, when, as they saw it themselves.
type diary struct {
	mu    sync.Mutex
	turns []turn
}

// turn is one call of a handler.
type turn struct {
	job        *Job
	begin, end time.Time // end is zero while it runs
}

// during notes that a handler runs, while do does.
func (h *diary) during(job *Job, do func() error) error {
	h.mu.Lock()
	i := len(h.turns)
	h.turns = append(h.turns, turn{job: job, begin: time.Now()})
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.turns[i].end = time.Now()
	}()
	return do()
}

func (h *diary) of(match func(turn) bool) []turn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(func(yield func(turn) bool) {
		for _, sp := range h.turns {
			if match(sp) && !yield(sp) {
				return
			}
		}
	})
}

func ofKind(kind string) func(turn) bool { return func(sp turn) bool { return sp.job.Kind == kind } }

func ofAll(turn) bool { return true }

// most is the largest number of the turns that ran at once. At one instant ends
// come before beginnings: simulated time stands still between them.
func most(turns []turn) int {
	type event struct {
		at   time.Time
		step int
	}
	var events []event
	for _, sp := range turns {
		events = append(events, event{sp.begin, 1}, event{sp.end, -1})
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Or(a.at.Compare(b.at), a.step-b.step) })
	n, top := 0, 0
	for _, e := range events {
		n += e.step
		top = max(top, n)
	}
	return top
}

func work(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// sleepUntilQuiet lets a bubble's time pass until no ad-hoc job is pending or
// running.
func sleepUntilQuiet(t testing.TB, s *Scheduler) {
	t.Helper()
	for range 1_000_000 {
		left, err := texts(t.Context(), s.DB(), `
			SELECT id FROM rota_jobs WHERE state IN ('pending', 'running') AND spec IS NULL LIMIT 1`)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(time.Minute)
	}
	t.Fatal("the jobs do not come to an end")
}

func TestNoLimitIsExceededAndNoSlotIsLeftIdle(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const all = 7
	limits := map[string]int{"one": 1, "three": 3, "free": 0}
	bubble(t, Config{MaxRunning: all}, func(t *testing.T, s *Scheduler) {
		var h diary
		durations, due := make(map[string]time.Duration), make(map[string]time.Time)
		for kind, limit := range limits {
			handle(s, Kind[struct{}](kind), Policy{MaxRunning: limit, Retry: Retry{Base: time.Second, MaxAttempts: 3}}, func(ctx context.Context, job *Job) error {
				return h.during(job, func() error {
					if err := work(ctx, durations[job.ID]); err != nil {
						return err
					}
					if job.Attempt < 3 && durations[job.ID]%3 == 0 {
						return errors.New("again")
					}
					return nil
				})
			})
		}
		jobs := fewer(500, 150)
		for range jobs {
			kind := []string{"one", "three", "free", "free", "free"}[r.IntN(5)]
			at := time.Now().Add(time.Duration(r.Int64N(int64(jobs) * int64(time.Second/10))))
			id := enqueue(t, s, Kind[struct{}](kind), struct{}{}, EnqueueOptions{RunAt: at, Priority: r.IntN(3)})
			due[fmt.Sprint(id, 1)], durations[id] = at, time.Millisecond+time.Duration(r.Int64N(int64(time.Second)))
		}
		stop := start(t, s)
		sleepUntilQuiet(t, s)
		stop()

		for kind, limit := range limits {
			n := most(h.of(ofKind(kind)))
			if limit > 0 && n != limit {
				t.Errorf("%d handlers of kind %s at once, want %d", n, kind, limit)
			}
		}
		if n := most(h.of(ofAll)); n != all {
			t.Errorf("%d handlers at once, want %d", n, all)
		}
		for id := range durations {
			for _, a := range attemptsOf(t, s, id) {
				due[fmt.Sprint(id, a.Number+1)] = a.NextAt
			}
		}
		checkNothingWaitedInVain(t, h.of(ofAll), due, all, limits)
	})
}

// checkNothingWaitedInVain looks whether, whenever an attempt was due and had
// not begun, all slots or those of its kind were in use.
func checkNothingWaitedInVain(t *testing.T, turns []turn, due map[string]time.Time, all int, limits map[string]int) {
	t.Helper()
	var instants []time.Time
	for _, sp := range turns {
		instants = append(instants, sp.begin, sp.end)
	}
	slices.SortFunc(instants, time.Time.Compare)
	for i, from := range instants[:len(instants)-1] {
		to := instants[i+1]
		if to.Sub(from) < 2*time.Microsecond { // the table's times are no finer
			continue
		}
		running := make(map[string]int)
		for _, sp := range turns {
			if !sp.begin.After(from) && !sp.end.Before(to) {
				running[sp.job.Kind]++
				running[""]++
			}
		}
		for _, sp := range turns {
			kind := sp.job.Kind
			waited := !due[fmt.Sprint(sp.job.ID, sp.job.Attempt)].After(from) && !sp.begin.Before(to)
			if waited && running[""] < all && (limits[kind] == 0 || running[kind] < limits[kind]) {
				t.Fatalf("from %v to %v attempt %d of a job of kind %s waited while %v ran", from, to, sp.job.Attempt, kind, running)
			}
		}
	}
}

func TestARateIsNeverExceededAndAlwaysReached(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		rate Rate
		work func() time.Duration
	}{
		{"short work", Rate{3, time.Second}, func() time.Duration { return rand.N(time.Second / 10) }},
		{"work much longer than the span of time", Rate{3, time.Second}, func() time.Duration { return time.Minute }},
		{"one in a while", Rate{1, 10 * time.Minute}, func() time.Duration { return time.Millisecond }},
		{"many", Rate{50, 5 * time.Second}, func() time.Duration { return rand.N(5 * time.Second) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{MaxRunning: 1000}, func(t *testing.T, s *Scheduler) {
				var h diary
				handle(s, "limited", Policy{Rate: c.rate, Retry: Retry{Base: time.Nanosecond, MaxAttempts: 2}}, func(ctx context.Context, job *Job) error {
					return h.during(job, func() error {
						if err := work(ctx, c.work()); err != nil || job.Attempt == 2 {
							return err
						}
						return errors.New("attempts count, not jobs")
					})
				})
				const jobs = 40
				for range jobs {
					enqueue(t, s, Kind[struct{}]("limited"), struct{}{}, EnqueueOptions{})
				}
				begin := time.Now()
				stop := start(t, s)
				sleepUntilQuiet(t, s)
				stop()
				var begins []time.Time
				for _, sp := range h.of(ofAll) {
					begins = append(begins, sp.begin)
				}
				slices.SortFunc(begins, time.Time.Compare)
				if len(begins) != 2*jobs {
					t.Fatalf("%d attempts", len(begins))
				}
				for i := c.rate.Count; i < len(begins); i++ {
					if d := begins[i].Sub(begins[i-c.rate.Count]); d < c.rate.Per {
						t.Fatalf("%d beginnings within %v", c.rate.Count+1, d)
					}
				}
				// All first attempts were due from the start, so the rate alone
				// says when each of them begins.
				for i, at := range begins[:jobs] {
					if want := time.Duration(i/c.rate.Count) * c.rate.Per; at.Sub(begin) != want {
						t.Fatalf("beginning %d came after %v, want %v", i+1, at.Sub(begin), want)
					}
				}
			})
		})
	}
}

func TestARateHoldsThroughManyCallsOfRunDue(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		var d diary
		handle(s, "limited", Policy{Rate: Rate{2, time.Minute}}, func(_ context.Context, job *Job) error {
			return d.during(job, func() error { return nil })
		})
		if _, err := Kind[struct{}]("limited").EnqueueMany(t.Context(), s, make([]Entry[struct{}], 20)...); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			runDue(t, s)
			time.Sleep(7 * time.Second)
		}
		turns := d.of(ofAll)
		for i := 2; i < len(turns); i++ {
			if gap := turns[i].begin.Sub(turns[i-2].begin); gap < time.Minute {
				t.Fatalf("three beginnings within %v", gap)
			}
		}
		if len(turns) != 20 {
			t.Errorf("%d beginnings", len(turns))
		}
	})
}

func TestAKindThatCanNotRunNeverHoldsUpAnother(t *testing.T) {
	t.Parallel()
	crowd := fewer(5_000, 1_000)
	for name, prepare := range map[string]func(t *testing.T, s *Scheduler){
		"paused": func(t *testing.T, s *Scheduler) {
			handle(s, "crowd", Policy{}, func(context.Context, *Job) error { return nil })
			if err := s.Pause(t.Context(), "crowd", By{}); err != nil {
				t.Fatal(err)
			}
		},
		"at its limit": func(_ *testing.T, s *Scheduler) {
			handle(s, "crowd", Policy{MaxRunning: 1}, func(ctx context.Context, _ *Job) error { return work(ctx, time.Hour) })
		},
		"at its rate": func(_ *testing.T, s *Scheduler) {
			handle(s, "crowd", Policy{Rate: Rate{1, 24 * time.Hour}}, func(context.Context, *Job) error { return nil })
		},
		"without a handler": func(*testing.T, *Scheduler) {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{MaxRunning: 4, Grace: -1}, func(t *testing.T, s *Scheduler) {
				prepare(t, s)
				entries := make([]Entry[struct{}], crowd)
				for i := range entries {
					entries[i].Priority = 1000
				}
				if _, err := Kind[struct{}]("crowd").EnqueueMany(t.Context(), s, entries...); err != nil {
					t.Fatal(err)
				}
				handle(s, "modest", Policy{}, func(ctx context.Context, _ *Job) error { return work(ctx, time.Second) })
				begin := time.Now()
				for range 30 {
					enqueue(t, s, Kind[struct{}]("modest"), struct{}{}, EnqueueOptions{Priority: -1000})
				}
				stop := start(t, s)
				time.Sleep(10 * time.Second) // 30 jobs, 3 or 4 at once, of a second each
				synctest.Wait()
				stats, err := s.Stats(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				stop()
				if n := len(slices.Collect(jobIDs(t, s, Filter{Kind: "modest", State: Succeeded}))); n != 30 {
					t.Errorf("after %v %d of 30 are done", time.Since(begin), n)
				}
				if name == "without a handler" && (stats.Unclaimable["crowd"] != crowd || stats.Unclaimable["modest"] != 0) {
					t.Errorf("unclaimable: %v", stats.Unclaimable)
				}
				if name != "without a handler" && len(stats.Unclaimable) != 0 {
					t.Errorf("unclaimable: %v", stats.Unclaimable)
				}
				touched := map[string]int{"paused": 0, "at its limit": 1, "at its rate": 1, "without a handler": 0}[name]
				if n, err := texts(t.Context(), s.DB(), `SELECT id FROM rota_jobs WHERE kind = 'crowd' AND attempt > 0`); err != nil || len(n) != touched {
					t.Errorf("%d of the crowd were touched (%v), want %d", len(n), err, touched)
				}
			})
		})
	}
}

func TestAKindsJobsWaitForItsHandlerWithoutAnAttempt(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		const kind Kind[struct{}] = "tomorrow"
		id := enqueue(t, s, kind, struct{}{}, EnqueueOptions{})
		stop := start(t, s)
		time.Sleep(time.Hour)
		if job := jobOf(t, s, id); job.State != Pending || job.Attempt != 0 {
			t.Errorf("%s after %d attempts", job.State, job.Attempt)
		}
		handle(s, kind, Policy{}, func(context.Context, *Job) error { return nil })
		synctest.Wait()
		if got := state(t, s, id); got != Succeeded {
			t.Errorf("with a handler it is %s", got)
		}
		stop()
	})
}

func TestDueJobsBeginByPriorityAndThenByAge(t *testing.T) {
	bubble(t, Config{MaxRunning: 1}, func(t *testing.T, s *Scheduler) {
		var h diary
		for _, kind := range []Kind[struct{}]{"a", "b"} {
			handle(s, kind, Policy{}, func(ctx context.Context, job *Job) error { return h.during(job, func() error { return nil }) })
		}
		type place struct {
			priority int
			runAt    time.Time
			n        int
		}
		var want []place
		now := time.Now()
		for i := range 60 {
			p := place{i * 7 % 5, now.Add(time.Duration(i*13%4) * time.Second), i}
			kind := Kind[struct{}]([]string{"a", "b"}[i%2])
			enqueue(t, s, kind, struct{}{}, EnqueueOptions{Priority: p.priority, RunAt: p.runAt, Labels: map[string]string{"n": fmt.Sprint(i)}})
			want = append(want, p)
		}
		time.Sleep(time.Minute)
		runDue(t, s)
		slices.SortFunc(want, func(a, b place) int {
			return cmp.Or(b.priority-a.priority, a.runAt.Compare(b.runAt), a.n-b.n)
		})
		for i, sp := range h.of(ofAll) {
			if sp.job.Labels["n"] != fmt.Sprint(want[i].n) {
				t.Fatalf("job %s ran as number %d, where %d should have", sp.job.Labels["n"], i+1, want[i].n)
			}
		}
	})
}

func TestAGroupsJobsRunOneAtATimeInTheirOrderRetriesIncluded(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		var h diary
		handle(s, "grouped", Policy{Retry: Retry{Base: time.Minute, MaxAttempts: 3}}, func(ctx context.Context, job *Job) error {
			return h.during(job, func() error {
				if err := work(ctx, time.Duration(job.Priority+1)*time.Second); err != nil {
					return err
				}
				switch {
				case job.Labels["fate"] == "snooze" && job.Attempt == 1:
					return Snooze(time.Hour)
				case job.Labels["fate"] == "retry" && job.Attempt < 3, job.Labels["fate"] == "die":
					return errors.New("no")
				}
				return nil
			})
		})
		type member struct {
			runAt time.Time
			n     int
		}
		members := make(map[string][]member) // by group
		number := make(map[string]int)       // by id
		begin := time.Now().Add(time.Hour)
		for i := range fewer(200, 100) {
			group := fmt.Sprint("g", r.IntN(5))
			m := member{begin.Add(time.Duration(r.IntN(4)) * time.Second), i}
			id := enqueue(t, s, Kind[struct{}]("grouped"), struct{}{}, EnqueueOptions{
				Group: group, RunAt: m.runAt, Priority: r.IntN(3), // which does not count within a group
				Labels: map[string]string{"fate": []string{"succeed", "retry", "die", "snooze"}[r.IntN(4)]},
			})
			members[group], number[id] = append(members[group], m), i
		}
		stop := start(t, s)
		sleepUntilQuiet(t, s)
		stop()
		for group, want := range members {
			slices.SortFunc(want, func(a, b member) int { return cmp.Or(a.runAt.Compare(b.runAt), a.n-b.n) })
			turns := h.of(func(sp turn) bool { return sp.job.Group == group })
			if n := most(turns); n != 1 {
				t.Errorf("group %s: %d at once", group, n)
			}
			var order []int
			for _, sp := range turns {
				if n := number[sp.job.ID]; len(order) == 0 || order[len(order)-1] != n {
					order = append(order, n) // attempts of one job stand together
				}
			}
			var wantOrder []int
			for _, m := range want {
				wantOrder = append(wantOrder, m.n)
			}
			if !slices.Equal(order, wantOrder) {
				t.Errorf("group %s ran as %v, want %v", group, order, wantOrder)
			}
		}
	})
}

func TestWhoLeavesAGroupMakesRoomForTheNext(t *testing.T) {
	const kind Kind[struct{}] = "grouped"
	for name, leave := range map[string]func(t *testing.T, s *Scheduler, first string){
		"held": func(t *testing.T, s *Scheduler, first string) {
			handle(s, kind, Policy{OnUnknown: UnknownHold}, func(_ context.Context, job *Job) error {
				if job.ID == first {
					return Unknown(errors.New("?"))
				}
				return nil
			})
		},
		"dead": func(t *testing.T, s *Scheduler, first string) {
			handle(s, kind, Policy{}, func(_ context.Context, job *Job) error {
				if job.ID == first {
					return Permanent(errors.New("no"))
				}
				return nil
			})
		},
		"cancelled while pending": func(t *testing.T, s *Scheduler, first string) {
			handle(s, kind, Policy{}, func(context.Context, *Job) error { return nil })
			if err := s.Cancel(t.Context(), first, By{}); err != nil {
				t.Fatal(err)
			}
		},
		"refused at its claim": func(t *testing.T, s *Scheduler, first string) {
			handle(s, kind, Policy{}, func(context.Context, *Job) error { return nil })
			// As if an older program had closed its attempts by another bound.
			if _, err := s.DB().Exec(`UPDATE rota_jobs SET spent = 99 WHERE id = $1`, first); err != nil {
				t.Fatal(err)
			}
		},
		"replayed": func(t *testing.T, s *Scheduler, first string) {
			handle(s, kind, Policy{}, func(_ context.Context, job *Job) error {
				if job.ID == first {
					return Permanent(errors.New("no"))
				}
				return nil
			})
			runDue(t, s)
			if _, err := s.Replay(t.Context(), first, ReplayOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{})
			var ids []string
			for range 4 {
				ids = append(ids, enqueue(t, s, kind, struct{}{}, EnqueueOptions{Group: "g"}))
			}
			leave(t, s, ids[0])
			runDue(t, s)
			for _, id := range ids[1:] {
				if got := state(t, s, id); got != Succeeded {
					t.Errorf("one behind it is %s", got)
				}
			}
		})
	}
}

func TestAHandlerThatIgnoresItsContextLosesItsSlotUpToABound(t *testing.T) {
	bubble(t, Config{MaxRunning: 2, MaxHung: 3, Unwind: time.Second}, func(t *testing.T, s *Scheduler) {
		release := make(chan struct{})
		var hanging atomic.Int64
		handle(s, "hangs", Policy{Timeout: 10 * time.Second, Retry: Retry{MaxAttempts: 1}}, func(_ context.Context, job *Job) error {
			hanging.Add(1)
			<-release
			job.Note("too", "late")
			return nil
		})
		handle(s, "good", Policy{}, func(context.Context, *Job) error { return nil })
		var hangs, good []string
		for range 8 {
			hangs = append(hangs, enqueue(t, s, Kind[struct{}]("hangs"), struct{}{}, EnqueueOptions{Priority: 1}))
		}
		for range 20 {
			good = append(good, enqueue(t, s, Kind[struct{}]("good"), struct{}{}, EnqueueOptions{}))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		check := func(after string, wantHung, wantCalled int) {
			t.Helper()
			synctest.Wait()
			stats, err := s.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if stats.Hung != wantHung || int(hanging.Load()) != wantCalled {
				t.Errorf("%s: %d hung of %d called, want %d of %d", after, stats.Hung, hanging.Load(), wantHung, wantCalled)
			}
		}
		check("at the start", 0, 2)
		time.Sleep(10 * time.Second)
		check("at the timeout", 0, 2)
		time.Sleep(time.Second)
		check("after the unwinding", 2, 4) // both slots were replaced
		time.Sleep(11 * time.Second)
		check("once more", 4, 5) // one slot beyond the bound is gone, one is replaced
		time.Sleep(11 * time.Second)
		check("at the end", 5, 5) // no slot is left
		time.Sleep(time.Hour)
		check("an hour later", 5, 5)
		if got := state(t, s, good[0]); got != Pending {
			t.Errorf("without a slot a job is %s", got)
		}
		close(release) // they return, and what is left is worked
		sleepUntilQuiet(t, s)
		check("when they have returned", 0, 8)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		for i, id := range hangs {
			a := attemptsOf(t, s, id)[0]
			if i < 5 && (a.Outcome != OutcomeUnknown || a.Class != "timeout" || a.FinishedAt.Sub(a.StartedAt) != 11*time.Second || a.Note != nil) {
				t.Errorf("hung attempt: %+v %s", a, a.Note)
			}
			if i >= 5 && a.Outcome != OutcomeSucceeded {
				t.Errorf("attempt after that: %+v", a)
			}
		}
		for _, id := range good {
			if got := state(t, s, id); got != Succeeded {
				t.Errorf("a good job is %s", got)
			}
		}
	})
}

func TestAHandlerThatHangsAfterItsProbeIsGivenUpAsCleanly(t *testing.T) {
	bubble(t, Config{Unwind: time.Second}, func(t *testing.T, s *Scheduler) {
		release := make(chan struct{})
		probing := make(chan bool, 2)
		probing <- false // the first probe answers, the second hangs
		probing <- true
		handle(s, "probed", Policy{Timeout: time.Minute, OnUnknown: UnknownProbe, Retry: Retry{MaxAttempts: 3},
			Probe: func(context.Context, *Job) (Verdict, error) {
				if <-probing {
					<-release
				}
				return NotHappened, nil
			},
		}, func(_ context.Context, job *Job) error {
			if job.Attempt > 1 {
				<-release
			}
			return Unknown(errors.New("?"))
		})
		id := enqueue(t, s, Kind[struct{}]("probed"), struct{}{}, EnqueueOptions{})
		for range 3 {
			if _, err := s.RunDue(t.Context()); err != nil && !errors.Is(err, ErrHandlersLeft) {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		if got := story(t, s, id); got != "unknown/unknown unknown/timeout unknown/timeout" || state(t, s, id) != Held {
			t.Errorf("%s: %s", state(t, s, id), got)
		}
		a := attemptsOf(t, s, id)
		if a[1].StartedAt.IsZero() || !a[2].StartedAt.IsZero() {
			t.Errorf("handlers began at %v and %v; want the second not to have", a[1].StartedAt, a[2].StartedAt)
		}
		before := dump(t, s.DB(), "rota_attempts", "1 = 1")
		close(release) // the probe says no, long after its attempt was given up
		synctest.Wait()
		if after := dump(t, s.DB(), "rota_attempts", "1 = 1"); after != before {
			t.Errorf("the evidence changed from\n%s\nto\n%s", before, after)
		}
	})
}

func TestAPanicAGoexitAndAFailedTestInAHandlerHarmNobodyElse(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		ways := map[Kind[struct{}]]func(){
			"panic":     func() { panic("x") },
			"panic.nil": func() { panic(nil) },
			"goexit":    func() { runtime.Goexit() },
			"index":     func() { _ = []int{}[len(os.Args)] },
		}
		ids := make(map[Kind[struct{}]]string)
		for kind, way := range ways {
			handle(s, kind, Policy{Retry: Retry{MaxAttempts: 2}}, func(context.Context, *Job) error {
				way()
				return nil
			})
			ids[kind] = enqueue(t, s, kind, struct{}{}, EnqueueOptions{})
		}
		handle(s, "good", Policy{}, func(ctx context.Context, _ *Job) error { return work(ctx, time.Second) })
		good := enqueue(t, s, Kind[struct{}]("good"), struct{}{}, EnqueueOptions{})
		runUntilIdle(t, s)
		if got := state(t, s, good); got != Succeeded {
			t.Errorf("the job beside them is %s", got)
		}
		for kind, id := range ids {
			want := "retry/panic failed/panic"
			if kind == "goexit" {
				want = "retry/goexit failed/goexit"
			}
			if got := story(t, s, id); got != want || state(t, s, id) != Dead {
				t.Errorf("%s: %s", kind, got)
			}
		}
	})
}

func TestFiveGracefulRestartsUseUpNoAttempt(t *testing.T) {
	for name, ended := range map[string]func(error) error{
		"plain":       func(err error) error { return fmt.Errorf("send: %w", err) },
		"at most":     func(err error) error { return AtMost(2, err) },
		"retry after": func(err error) error { return RetryAfter(time.Hour, err) },
		"other error": func(error) error { return errors.New("half done") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "rota.db")
				var id string
				for restart := range 6 {
					s := openAt(t, path, Config{PollInterval: -1, Grace: -1})
					handle(s, "long", Policy{Retry: Retry{MaxAttempts: 2}, MaxDeaths: 2}, func(ctx context.Context, job *Job) error {
						if restart == 5 {
							return nil
						}
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), ErrShutdown) {
							t.Errorf("the context ended with %v", context.Cause(ctx))
						}
						return ended(ctx.Err())
					})
					if id == "" {
						id = enqueue(t, s, Kind[struct{}]("long"), struct{}{}, EnqueueOptions{})
					}
					stop := start(t, s)
					time.Sleep(time.Minute)
					stop()
					if restart < 5 {
						job, a := jobOf(t, s, id), attemptsOf(t, s, id)
						last := a[len(a)-1]
						if job.State != Pending || job.Reason != "interrupted" || job.spent != 0 || job.deaths != 0 || job.RunAt.After(time.Now()) {
							t.Fatalf("after restart %d: %+v", restart+1, job)
						}
						if last.Outcome != OutcomeInterrupted || last.Class != "shutdown" || !last.NextAt.Equal(last.FinishedAt) || last.Bound != 0 {
							t.Errorf("%+v", last)
						}
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				s := openAt(t, path, Config{PollInterval: -1})
				if job := jobOf(t, s, id); job.State != Succeeded || job.Attempt != 6 {
					t.Errorf("%s after %d attempts", job.State, job.Attempt)
				}
			})
		})
	}
}

func TestAShutdownGivesHandlersTheirGrace(t *testing.T) {
	bubble(t, Config{Grace: time.Minute, Unwind: 10 * time.Second, LeaseTTL: 5 * time.Second}, func(t *testing.T, s *Scheduler) {
		release := make(chan struct{})
		kinds := map[Kind[struct{}]]func(ctx context.Context) error{
			"in.time":   func(ctx context.Context) error { return work(ctx, 50*time.Second) },
			"late":      func(ctx context.Context) error { return work(ctx, time.Hour) },
			"unwinding": func(ctx context.Context) error { <-ctx.Done(); time.Sleep(9 * time.Second); return nil },
			"hung":      func(context.Context) error { <-release; return nil },
		}
		ids := make(map[Kind[struct{}]]string)
		for kind, do := range kinds {
			handle(s, kind, Policy{}, func(ctx context.Context, _ *Job) error { return do(ctx) })
			ids[kind] = enqueue(t, s, kind, struct{}{}, EnqueueOptions{})
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		synctest.Wait()
		cancel()
		begin := time.Now()
		synctest.Wait()
		refused := enqueue(t, s, Kind[struct{}]("in.time"), struct{}{}, EnqueueOptions{}) // no new work any more
		for range 13 {
			time.Sleep(5 * time.Second)
			synctest.Wait()
			// The lease is given back last, and renewed until then.
			stats, err := s.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if stats.Lease.Holder == "" || stats.LeaseAge > 2*time.Second {
				t.Errorf("%v after the end was asked for the lease is %q's, %v old", time.Since(begin), stats.Lease.Holder, stats.LeaseAge)
			}
		}
		err := <-ended
		if d := time.Since(begin); d != 70*time.Second {
			t.Errorf("run returned after %v, want the grace and the unwinding", d)
		}
		if !errors.Is(err, ErrHandlersLeft) {
			t.Errorf("run returned %v", err)
		}
		if stats, err := s.Stats(t.Context()); err != nil || stats.Lease.Holder != "" || stats.Hung != 1 {
			t.Errorf("lease %+v, %d hung, %v", stats.Lease, stats.Hung, err)
		}
		close(release)
		synctest.Wait()
		for kind, want := range map[Kind[struct{}]]string{
			"in.time": "succeeded/ok", "late": "interrupted/shutdown", "unwinding": "succeeded/ok", "hung": "unknown/shutdown",
		} {
			if got := story(t, s, ids[kind]); got != want {
				t.Errorf("%s: %s, want %s", kind, got, want)
			}
		}
		if job := jobOf(t, s, ids["hung"]); job.State != Pending || job.deaths != 1 || job.spent != 0 {
			t.Errorf("the hung job: %+v", job)
		}
		if job := jobOf(t, s, refused); job.State != Pending || job.Attempt != 0 {
			t.Errorf("a job of after the end is %s", job.State)
		}
	})
}

func TestRunAndRunDueRefuseWhatTheyMust(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{})
	handle(s, "waits", Policy{}, func(ctx context.Context, _ *Job) error {
		<-ctx.Done()
		return ctx.Err()
	})
	id := enqueue(t, s, Kind[struct{}]("waits"), struct{}{}, EnqueueOptions{})
	stop := start(t, s)
	waitFor(t, "it runs", func() bool { return state(t, s, id) == Running })
	if err := s.Run(t.Context()); !errors.Is(err, ErrRunning) {
		t.Errorf("a second Run: %v", err)
	}
	if _, err := s.RunDue(t.Context()); !errors.Is(err, ErrRunning) {
		t.Errorf("RunDue beside Run: %v", err)
	}
	other := openAt(t, path, Config{})
	if _, err := other.RunDue(t.Context()); !errors.Is(err, ErrLeaseHeld) || !strings.Contains(err.Error(), s.name) {
		t.Errorf("RunDue beside another's Run: %v", err)
	}
	s.cfg.Grace = -1
	stop()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		closed, err := s.RunDue(ctx)
		if !errors.Is(err, context.Canceled) || len(closed) != 1 || closed[0].Outcome != OutcomeInterrupted {
			t.Errorf("RunDue whose context ends: %+v, %v", closed, err)
		}
	}()
	waitFor(t, "it runs", func() bool { return state(t, s, id) == Running })
	cancel()
	<-done

	// Faults of declarations are Run's answer.
	handle(other, "twice", Policy{}, func(context.Context, *Job) error { return nil })
	handle(other, "twice", Policy{}, func(context.Context, *Job) error { return nil })
	handle(other, "no name", Policy{}, func(context.Context, *Job) error { return nil })
	handle(other, "no.probe", Policy{OnUnknown: UnknownProbe}, func(context.Context, *Job) error { return nil })
	handle(other, "bad", Policy{Rate: Rate{Count: 1}}, func(context.Context, *Job) error { return nil })
	for _, run := range []func() error{
		func() error { return other.Run(t.Context()) },
		func() error { _, err := other.RunDue(t.Context()); return err },
	} {
		err := run()
		for _, want := range []string{"handle twice: ", "handle no name: ", "handle no.probe: ", "handle bad: "} {
			if err == nil || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
				t.Errorf("want a fault with %q, got %v", want, err)
			}
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Run after Close: %v", err)
	}
}

// crash makes a scheduler the runner, lets it claim all that is due, calls
// begin for each job, and goes away as a crash would: what it claimed stays
// open, and the lease is not given back.
func crash(t testing.TB, path string, prepare func(s *Scheduler), begin func(job *Job) error) (claimed []*Job) {
	t.Helper()
	s := openAt(t, path, Config{Name: "crashed"})
	prepare(s)
	c := contest{s: s}
	token, err := c.try(context.Background())
	if err != nil || token == 0 {
		t.Fatalf("lease: %d, %v", token, err)
	}
	term := newTerm(s, &c, token)
	found, err := term.claimDue(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range found.jobs {
		if err := begin(job); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return found.jobs
}

func TestTheNextRunnerClosesOrphansByWhatIsKnownOfThem(t *testing.T) {
	claimedOnly := func(*Job) error { return nil }
	started := func(job *Job) error { return job.run.markStarted(context.Background()) }
	for _, c := range []struct {
		name    string
		policy  OnUnknown
		begin   func(*Job) error
		first   string // attempt
		state   State  // right after the takeover
		reason  string
		then    string // all attempts, after the next runner's work
		counted bool   // as a death
	}{
		{"retry, claimed", UnknownRetry, claimedOnly, "unknown/process_died", Pending, "process_died", "unknown/process_died succeeded/ok", true},
		{"hold, claimed", UnknownHold, claimedOnly, "interrupted/not_started", Pending, "interrupted", "interrupted/not_started succeeded/ok", false},
		{"hold, started", UnknownHold, started, "unknown/process_died", Held, "unknown", "unknown/process_died", true},
		{"probe, claimed", UnknownProbe, claimedOnly, "interrupted/not_started", Pending, "interrupted", "interrupted/not_started succeeded/ok", false},
		{"probe, started", UnknownProbe, started, "unknown/process_died", Pending, "process_died", "unknown/process_died succeeded/probe", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rota.db")
			s := openAt(t, path, Config{})
			const kind Kind[struct{}] = "orphaned"
			prepare := func(s *Scheduler) {
				handle(s, kind, Policy{OnUnknown: c.policy, Probe: func(context.Context, *Job) (Verdict, error) { return Happened, nil }},
					func(context.Context, *Job) error { return nil })
			}
			id := enqueue(t, s, kind, struct{}{}, EnqueueOptions{})
			if jobs := crash(t, path, prepare, c.begin); len(jobs) != 1 {
				t.Fatalf("%d jobs were claimed", len(jobs))
			}
			prepare(s)
			if err := s.Pause(t.Context(), string(kind), By{}); err != nil { // to see it between
				t.Fatal(err)
			}
			closed := runDue(t, s)
			job, a := jobOf(t, s, id), attemptsOf(t, s, id)
			if got := story(t, s, id); got != c.first || job.State != c.state || job.Reason != c.reason || (job.deaths == 1) != c.counted || job.spent != 0 {
				t.Errorf("closed as %s; the job is %s, %s, with %d deaths", got, job.State, job.Reason, job.deaths)
			}
			if !strings.HasPrefix(a[0].Runner, "crashed:") || a[0].Token != 1 || a[0].StartedAt.IsZero() != strings.Contains(c.first, "not_started") {
				t.Errorf("evidence: %+v", a[0])
			}
			if len(closed) != 1 || fmt.Sprint(closed[0]) != fmt.Sprint(a[0]) {
				t.Errorf("RunDue answered %+v\nthe table has    %+v", closed, a)
			}
			if err := s.Resume(t.Context(), string(kind), By{}); err != nil {
				t.Fatal(err)
			}
			runDue(t, s)
			if got := story(t, s, id); got != c.then {
				t.Errorf("in the end: %s, want %s", got, c.then)
			}
		})
	}
}

func TestMoreOrphansThanABatchHoldsAreClosedAndWorked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{})
	const kind Kind[struct{}] = "orphaned"
	entries := make([]Entry[struct{}], fewer(1_200, 600))
	if _, err := kind.EnqueueMany(t.Context(), s, entries...); err != nil {
		t.Fatal(err)
	}
	prepare := func(s *Scheduler) {
		s.cfg.MaxRunning = len(entries)
		handle(s, kind, Policy{}, func(context.Context, *Job) error { return nil })
	}
	if jobs := crash(t, path, prepare, func(*Job) error { return nil }); len(jobs) != len(entries) {
		t.Fatalf("%d jobs were claimed", len(jobs))
	}
	prepare(s)
	if closed := runDue(t, s); len(closed) != 2*len(entries) {
		t.Errorf("%d attempts were closed, want %d", len(closed), 2*len(entries))
	}
	if n := len(slices.Collect(jobIDs(t, s, Filter{State: Succeeded}))); n != len(entries) {
		t.Errorf("%d succeeded", n)
	}
}

func TestDeathsAreBoundedByTheKindsPolicyWhoeverClosesThem(t *testing.T) {
	for _, bound := range []int{1, 3, 5} {
		path := filepath.Join(t.TempDir(), "rota.db")
		// It closes orphans, and knows nothing of the kind.
		stranger := openAt(t, path, Config{})
		const kind Kind[struct{}] = "deadly"
		id := enqueue(t, stranger, kind, struct{}{}, EnqueueOptions{})
		prepare := func(s *Scheduler) {
			handle(s, kind, Policy{MaxDeaths: bound}, func(context.Context, *Job) error { return nil })
		}
		deaths := 0
		for ; deaths < 10 && state(t, stranger, id) == Pending; deaths++ {
			if len(crash(t, path, prepare, func(*Job) error { return nil })) == 0 {
				break // it was refused
			}
			runDue(t, stranger)
		}
		job := jobOf(t, stranger, id)
		if job.State != Dead || job.Reason != "process_died" || deaths != bound || job.Attempt != bound {
			t.Errorf("bound %d: %s, %s after %d deaths and %d attempts", bound, job.State, job.Reason, deaths, job.Attempt)
		}
		crash(t, path, prepare, func(*Job) error { return nil }) // leaves no orphan
		runDue(t, stranger)
	}
}

func init() {
	childRoles["runner: jobs, one of which ends the process"] = func(args []string) {
		s, err := Open(args[0], Config{})
		if err != nil {
			childFatal(err)
		}
		retry := Retry{Base: time.Millisecond, Cap: time.Millisecond}
		deadly := make(chan struct{})
		handle(s, "deadly", Policy{Retry: retry}, func(context.Context, *Job) error {
			fmt.Println("deadly")
			close(deadly)
			os.Exit(3)
			return nil
		})
		handle(s, "innocent", Policy{Retry: retry}, func(ctx context.Context, _ *Job) error {
			select { // so that many are at work when the process ends
			case <-deadly:
			case <-time.After(20 * time.Millisecond):
			}
			return nil
		})
		if _, err := s.RunDue(context.Background()); err != nil {
			childFatal(err)
		}
	}
}

func TestAJobThatEndsTheProcessIsDeadAfterThreeStartsAndOthersFinish(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{})
	var innocent []string
	for range 50 {
		innocent = append(innocent, enqueue(t, s, Kind[struct{}]("innocent"), struct{}{}, EnqueueOptions{}))
	}
	deadly := enqueue(t, s, Kind[struct{}]("deadly"), struct{}{}, EnqueueOptions{Priority: 1})
	for range 50 {
		innocent = append(innocent, enqueue(t, s, Kind[struct{}]("innocent"), struct{}{}, EnqueueOptions{}))
	}
	starts := 0
	for restart := 0; len(slices.Collect(jobIDs(t, s, Filter{State: Pending})))+len(slices.Collect(jobIDs(t, s, Filter{State: Running}))) > 0; restart++ {
		if restart > 20 {
			t.Fatal("it does not come to an end")
		}
		c := startChild(t, "runner: jobs, one of which ends the process", path)
		for line := range c.lines {
			if line == "deadly" {
				starts++
			}
		}
		c.lines = nil
		<-c.gone
		if c.err != nil && c.cmd.ProcessState.ExitCode() != 3 {
			t.Fatalf("the child ended with %v\n%s", c.err, &c.stderr)
		}
	}
	job := jobOf(t, s, deadly)
	if starts != 3 || job.State != Dead || job.Reason != "process_died" || job.Attempt != 3 || job.deaths != 3 {
		t.Errorf("%d starts; the job is %s, %s after %d attempts", starts, job.State, job.Reason, job.Attempt)
	}
	if got := story(t, s, deadly); got != "unknown/process_died unknown/process_died unknown/process_died" {
		t.Errorf("%s", got)
	}
	struck := 0
	for _, id := range innocent {
		job := jobOf(t, s, id)
		if job.State != Succeeded || job.deaths > 2 {
			t.Errorf("an innocent job is %s, %s, with %d deaths", job.State, job.Reason, job.deaths)
		}
		struck += job.deaths
	}
	if struck == 0 {
		t.Error("no other job was at work when the process ended: the test shows nothing")
	}
}

func TestCompleteTxHappensOnceWithTheEffectOrNotAtAll(t *testing.T) {
	for _, c := range []struct {
		how     string // of the first attempt; the second commits
		story   string
		note    bool
		effects int
	}{
		{"commit", "succeeded/ok", true, 1},
		{"commit and fail", "succeeded/ok", true, 1},
		{"commit and panic", "succeeded/ok", true, 1},
		{"commit late", "succeeded/ok", true, 1},
		{"roll back", "retry/not_committed succeeded/ok", true, 1},
		{"forget", "retry/not_committed succeeded/ok", true, 1},
	} {
		t.Run(c.how, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
				if _, err := s.DB().Exec(`CREATE TABLE effects (id TEXT)`); err != nil {
					t.Fatal(err)
				}
				handle(s, "effect", Policy{Timeout: time.Second / 2, Retry: Retry{MaxAttempts: 3}}, func(ctx context.Context, job *Job) error {
					job.Note("attempt", job.Attempt)
					if job.Attempt > 1 {
						return completeWith(ctx, s, job, "commit")
					}
					return completeWith(ctx, s, job, c.how)
				})
				id := enqueue(t, s, Kind[struct{}]("effect"), struct{}{}, EnqueueOptions{})
				runUntilIdle(t, s)
				if got := story(t, s, id); got != c.story || state(t, s, id) != Succeeded {
					t.Errorf("%s: %s, want %s", state(t, s, id), got, c.story)
				}
				effects, err := texts(t.Context(), s.DB(), `SELECT id FROM effects`)
				if err != nil || len(effects) != c.effects {
					t.Errorf("effects %v, %v", effects, err)
				}
				a := attemptsOf(t, s, id)
				if last := a[len(a)-1]; string(last.Note) != fmt.Sprintf(`{"attempt":%d}`, len(a)) {
					t.Errorf("note %s", last.Note)
				}
			})
		})
	}
}

func TestCompleteTxIsRefusedToAHandlerThatComesTooLate(t *testing.T) {
	bubble(t, Config{Unwind: time.Second}, func(t *testing.T, s *Scheduler) {
		if _, err := s.DB().Exec(`CREATE TABLE effects (id TEXT)`); err != nil {
			t.Fatal(err)
		}
		answers := make(chan error, 2)
		handle(s, "effect", Policy{Timeout: time.Second, Retry: Retry{Base: time.Minute}}, func(ctx context.Context, job *Job) error {
			if job.Attempt == 1 {
				time.Sleep(time.Hour) // given up long before
				answers <- completeWith(context.WithoutCancel(ctx), s, job, "commit")
				return nil
			}
			return completeWith(ctx, s, job, "commit")
		})
		id := enqueue(t, s, Kind[struct{}]("effect"), struct{}{}, EnqueueOptions{})
		if _, err := s.RunDue(t.Context()); !errors.Is(err, ErrHandlersLeft) {
			t.Fatal(err)
		}
		if err := <-answers; !errors.Is(err, ErrLeaseLost) {
			t.Errorf("the late handler was answered %v", err)
		}
		runUntilIdle(t, s)
		effects, err := texts(t.Context(), s.DB(), `SELECT id FROM effects`)
		if err != nil || len(effects) != 1 || story(t, s, id) != "unknown/timeout succeeded/ok" {
			t.Errorf("effects %v, %v; %s", effects, err, story(t, s, id))
		}
	})
}

func TestCompleteTxIsRefusedToARunnerThatWasReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{})
	if _, err := s.DB().Exec(`CREATE TABLE effects (id TEXT)`); err != nil {
		t.Fatal(err)
	}
	id := enqueue(t, s, Kind[struct{}]("effect"), struct{}{}, EnqueueOptions{})
	prepare := func(s *Scheduler) {
		handle(s, "effect", Policy{}, func(ctx context.Context, job *Job) error { return completeWith(ctx, s, job, "commit") })
	}
	old := crash(t, path, prepare, func(*Job) error { return nil })[0]
	prepare(s)
	// The new runner has the lease, and has not yet closed what the old one left.
	c := contest{s: s}
	token, err := c.try(t.Context())
	if token != 2 || err != nil {
		t.Fatal(token, err)
	}
	if err := completeWith(t.Context(), s, old, "commit"); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("in the takeover the old runner's handler was answered %v", err)
	}
	if err := c.release(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context(), "effect", By{}); err != nil {
		t.Fatal(err)
	}
	runDue(t, s)
	if err := completeWith(t.Context(), s, old, "commit"); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("the old runner's handler was answered %v", err)
	}
	if err := s.Resume(t.Context(), "effect", By{}); err != nil {
		t.Fatal(err)
	}
	runDue(t, s)
	effects, err := texts(t.Context(), s.DB(), `SELECT id FROM effects`)
	if err != nil || len(effects) != 1 || state(t, s, id) != Succeeded {
		t.Errorf("effects %v, %v; the job is %s", effects, err, state(t, s, id))
	}
}

func TestAConfigsKindsOverrideThePrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), Config{PollInterval: -1, Kinds: map[string]Policy{
			"tuned": {Timeout: time.Second, MaxRunning: 1, Retry: Retry{MaxAttempts: 2}, OnUnknown: UnknownHold},
		}})
		var h diary
		handle(s, "tuned", Policy{Timeout: time.Hour, MaxRunning: 9, Retry: Retry{MaxAttempts: 9}}, func(ctx context.Context, job *Job) error {
			return h.during(job, func() error {
				<-ctx.Done()
				return ctx.Err()
			})
		})
		ids := []string{enqueue(t, s, Kind[struct{}]("tuned"), struct{}{}, EnqueueOptions{}), enqueue(t, s, Kind[struct{}]("tuned"), struct{}{}, EnqueueOptions{})}
		runDue(t, s)
		for _, id := range ids {
			if got := state(t, s, id); got != Held {
				t.Errorf("the job is %s", got)
			}
		}
		turns := h.of(ofAll)
		if most(turns) != 1 || turns[0].end.Sub(turns[0].begin) != time.Second {
			t.Errorf("%d at once, each for %v", most(turns), turns[0].end.Sub(turns[0].begin))
		}
	})
}
