package rota

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The guarantees of doc.go, one test each. TestGuarantee2 pauses processes and
// so stands in guarantees_unix_test.go.

func init() {
	// It enqueues in every way, and says each job's id when it was answered.
	childRoles["guarantee: enqueue"] = func(args []string) {
		s, err := Open(args[0], Config{})
		if err != nil {
			childFatal(err)
		}
		var mu sync.Mutex // so that lines stay whole
		say := func(answers ...Enqueued) {
			mu.Lock()
			defer mu.Unlock()
			for _, a := range answers {
				fmt.Println(a.ID)
			}
		}
		ctx := childContext()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					one, err := plain.Enqueue(ctx, s, struct{}{}, EnqueueOptions{})
					if err != nil {
						return
					}
					say(one)
					some, err := plain.EnqueueMany(ctx, s, make([]Entry[struct{}], 3)...)
					if err != nil {
						return
					}
					say(some...)
					tx, err := s.DB().BeginTx(ctx, nil)
					if err != nil {
						return
					}
					if one, err = plain.EnqueueTx(ctx, s, tx, struct{}{}, EnqueueOptions{}); err != nil || tx.Commit() != nil {
						return
					}
					say(one)
				}
			})
		}
		wg.Wait()
	}

	// It competes for the lease and works, each job with an effect in the
	// database, until it is told to end, killed or paused.
	childRoles["guarantee: work"] = func(args []string) {
		s, err := Open(args[0], Config{Name: args[1], LeaseTTL: 300 * time.Millisecond, PollInterval: 10 * time.Millisecond, MaxRunning: 4})
		if err != nil {
			childFatal(err)
		}
		handle(s, "effect", Policy{MaxDeaths: 1000, Retry: Retry{Base: time.Millisecond, Cap: time.Millisecond, MaxAttempts: 1000}}, func(ctx context.Context, job *Job) error {
			if err := work(ctx, time.Duration(rand.Int64N(int64(30*time.Millisecond)))); err != nil {
				return err
			}
			return completeWith(ctx, s, job, "commit")
		})
		if err := s.Run(childContext()); err != nil {
			childFatal(err)
		}
	}
}

func TestGuarantee1EnqueueIsNotLost(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{})
	// Before a commit is answered it is on the disk, and not only in the memory
	// of a system that may lose its power.
	var synchronous int
	var mode string
	write := s.store.(*sqliteStore).write
	if err := errors.Join(write.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&synchronous),
		write.QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode)); err != nil || synchronous != 2 || mode != "wal" {
		t.Errorf("synchronous is %d, the journal %s, %v", synchronous, mode, err)
	}
	answered := 0
	for range 10 {
		c := startChild(t, "guarantee: enqueue", path)
		var ids []string
		for n := 1 + rand.IntN(60); len(ids) < n; {
			ids = append(ids, c.line())
		}
		_ = c.cmd.Process.Kill() // and what it has said until then counts, too
		for line := range c.lines {
			ids = append(ids, line)
		}
		c.lines = nil
		<-c.gone
		for _, id := range ids {
			if len(id) != 36 {
				continue // the line that the kill cut off
			}
			answered++
			if _, err := s.Job(t.Context(), id); err != nil {
				t.Fatalf("an enqueue that was answered: %v", err)
			}
		}
	}
	if answered < 10 {
		t.Errorf("only %d enqueues were answered: the test shows nothing", answered)
	}
	// They all run.
	handle(s, plain, Policy{}, succeed)
	runDue(t, s)
	if n := len(slices.Collect(jobIDs(t, s, Filter{State: Succeeded}))); n < answered {
		t.Errorf("%d of %d have run", n, answered)
	}
}

// openWithEffects opens a scheduler, and a table in which nothing may stand
// twice, with room to see that it does.
func openWithEffects(t testing.TB, path string) *Scheduler {
	t.Helper()
	s := openAt(t, path, Config{})
	if _, err := s.DB().Exec(`CREATE TABLE effects (id TEXT)`); err != nil {
		t.Fatal(err)
	}
	return s
}

// checkEffects looks whether every job has succeeded, with one effect.
func checkEffects(t testing.TB, s *Scheduler) {
	t.Helper()
	broken, err := texts(context.Background(), s.DB(), `
		SELECT id || ' is ' || state || ' with ' || (SELECT count(*) FROM effects e WHERE e.id = j.id) || ' effects' FROM rota_jobs j
		WHERE state <> 'succeeded' OR 1 <> (SELECT count(*) FROM effects e WHERE e.id = j.id)`)
	if err != nil || len(broken) > 0 {
		t.Errorf("%d jobs: %q, %v", len(broken), broken[:min(len(broken), 5)], err)
	}
}

func unfinished(t testing.TB, s *Scheduler) int {
	t.Helper()
	left, err := texts(context.Background(), s.DB(), `SELECT id FROM rota_jobs WHERE finished_at IS NULL`)
	if err != nil {
		t.Fatal(err)
	}
	return len(left)
}

func TestGuarantee3AJobRunsUntilItIsTerminalWithOneEffect(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openWithEffects(t, path)
	entries := make([]Entry[struct{}], fewer(400, 120))
	if _, err := Kind[struct{}]("effect").EnqueueMany(t.Context(), s, entries...); err != nil {
		t.Fatal(err)
	}
	before := unfinished(t, s)
	for kill := 0; unfinished(t, s) > 0; kill++ {
		c := startChild(t, "guarantee: work", path, fmt.Sprint("worker-", kill))
		target := 0
		if kill < 6 { // and the last one works in peace
			target = before - 5 - rand.IntN(20)
		}
		waitFor(t, "some work is done", func() bool { before = unfinished(t, s); return before <= max(target, 0) })
		c.kill()
	}
	checkEffects(t, s)
	repeated, err := texts(t.Context(), s.DB(), `SELECT job_id FROM rota_attempts WHERE class = 'process_died'`)
	if err != nil || len(repeated) == 0 {
		t.Errorf("no attempt was cut off by a kill (%v): the test shows nothing", err)
	}
}

func TestGuarantee4AttemptsAreNumberedAndThoseThatCountAreBounded(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		const bound, deaths = 5, 4
		var mu sync.Mutex // guards r and calls
		calls := make(map[string]int)
		prepare := func(s *Scheduler) {
			handle(s, "any", Policy{Timeout: time.Minute, MaxDeaths: deaths, Retry: Retry{Base: time.Minute, MaxAttempts: bound}}, func(ctx context.Context, job *Job) error {
				mu.Lock()
				calls[job.ID]++
				step := scriptStep(r.IntN(int(scriptSteps)))
				mu.Unlock()
				if step == stepSucceed || step == stepPermanent {
					step = stepFail // seldom an end before the bound
				}
				return step.do(ctx)
			})
		}
		s := openAt(t, path, Config{PollInterval: -1, LeaseTTL: time.Hour, Grace: -1})
		prepare(s)
		for range 60 {
			enqueue(t, s, Kind[struct{}]("any"), struct{}{}, EnqueueOptions{})
		}
		for round := range 400 {
			if unfinished(t, s) == 0 {
				break
			}
			switch round % 5 {
			case 0: // a crash of another runner, right after its claim
				crash(t, path, prepare, func(*Job) error { return nil })
			case 1: // a stop in the midst of it
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- s.Run(ctx) }()
				time.Sleep(time.Duration(rand.IntN(120)) * time.Second)
				cancel()
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
			default:
				runDue(t, s)
			}
			time.Sleep(10 * time.Minute)
		}
		if n := unfinished(t, s); n > 0 {
			t.Fatalf("%d jobs do not come to an end", n)
		}
		interrupted := 0
		for job := range jobsOf(t, s, Filter{}) {
			counted, died := 0, 0
			for i, a := range attemptsOf(t, s, job.ID) {
				if a.Number != i+1 || a.Outcome == "" || a.FinishedAt.IsZero() {
					t.Errorf("job %s: attempt %d is %+v", job.ID, i+1, a)
				}
				switch a.Outcome {
				case OutcomeInterrupted:
					interrupted++
				case OutcomeSnoozed:
				case OutcomeUnknown:
					if a.Class == "process_died" {
						died++
						continue
					}
					counted++
				default:
					counted++
				}
			}
			if counted > bound || died > deaths || job.Attempt < counted+died || counted < bound && died < deaths {
				t.Errorf("job %s, %s: %d attempts, of which %d counted and %d died; bounds %d and %d", job.ID, job.Reason, job.Attempt, counted, died, bound, deaths)
			}
			if calls[job.ID] > job.Attempt {
				t.Errorf("job %s: the handler was called %d times, %d attempts are on record", job.ID, calls[job.ID], job.Attempt)
			}
		}
		if interrupted == 0 {
			t.Error("no attempt was interrupted: the test shows too little")
		}
	})
}

func TestGuarantee5TheDelayLiesWithinThePolicysBounds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	// Policies of all shapes, with delays that a bubble can live through.
	policy := func() *Retry {
		p := Retry{
			Base: time.Duration(r.Int64N(int64(time.Minute))), Cap: time.Duration(r.Int64N(int64(time.Hour))),
			Factor: 1 + 9*r.Float64(), MaxAttempts: 2 + r.IntN(30),
		}
		p.Jitter = []Jitter{{}, NoJitter(), Full(), Plus(time.Duration(r.IntN(20)) * time.Second), Fraction(r.Float64())}[r.IntN(5)]
		return &p
	}
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		var d diary
		handle(s, "fails", Policy{}, func(_ context.Context, job *Job) error {
			return d.during(job, func() error { return errors.New("no") })
		})
		for range fewer(50, 8) {
			enqueue(t, s, Kind[struct{}]("fails"), struct{}{}, EnqueueOptions{Retry: policy()})
		}
		runUntilIdle(t, s)
		for job := range jobsOf(t, s, Filter{}) {
			p := job.Retry.withDefaults()
			share := map[jitterKind]float64{jitterPlus: float64(p.Jitter.plus), jitterFraction: float64(p.Cap) * p.Jitter.fraction}[p.Jitter.kind]
			turns := d.of(func(tn turn) bool { return tn.job.ID == job.ID })
			attempts := attemptsOf(t, s, job.ID)
			if len(turns) != p.MaxAttempts || len(attempts) != p.MaxAttempts {
				t.Fatalf("%+v: %d calls and %d attempts", p, len(turns), len(attempts))
			}
			for i, a := range attempts[:len(attempts)-1] {
				exact := min(float64(p.Base)*math.Pow(p.Factor, float64(i)), float64(p.Cap))
				least, most := exact, exact
				switch p.Jitter.kind {
				case jitterPlus:
					most += float64(p.Jitter.plus)
				case jitterFull:
					least = 0
				case jitterFraction:
					most *= 1 + p.Jitter.fraction
				}
				delay, slack := float64(a.NextAt.Sub(a.FinishedAt)), float64(2*time.Microsecond)
				if delay < 0 || delay < least-slack || delay > most+slack || delay > float64(p.Cap)+share+slack {
					t.Errorf("%+v: after failure %d a delay of %v, want %v to %v", p, i+1, time.Duration(delay), time.Duration(least), time.Duration(most))
				}
				if begin := turns[i+1].begin; begin.Before(a.NextAt) {
					t.Errorf("attempt %d began at %v, before %v", i+2, begin, a.NextAt)
				}
			}
		}
	})
}

func TestGuarantee6TheIdempotencyKeyIsAJobsOwnAndStaysTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		var mu sync.Mutex
		seen := make(map[string]map[string]bool) // by the job that was the first
		origin := make(map[string]string)
		prepare := func(s *Scheduler) {
			handle(s, "keyed", Policy{Retry: Retry{MaxAttempts: 3}}, func(_ context.Context, job *Job) error {
				mu.Lock()
				defer mu.Unlock()
				first := job.ID
				if job.ReplayOf != "" {
					first = origin[job.ReplayOf]
				}
				origin[job.ID] = first
				if seen[first] == nil {
					seen[first] = make(map[string]bool)
				}
				seen[first][job.IdempotencyKey] = true
				if job.Attempt == 2 {
					return Snooze(time.Minute)
				}
				return errors.New("no")
			})
		}
		s := openAt(t, path, Config{PollInterval: -1, LeaseTTL: time.Hour})
		prepare(s)
		const kind Kind[struct{}] = "keyed"
		entries := make([]Entry[struct{}], fewer(100, 20))
		answers, err := kind.EnqueueMany(t.Context(), s, entries...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.DB().Exec(`CREATE TABLE rows (n INTEGER); INSERT INTO rows VALUES (1), (2), (3), (4)`); err != nil {
			t.Fatal(err)
		}
		if n, err := kind.Sweep(t.Context(), s, `SELECT n, '{}' FROM rows`); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		if err := kind.Schedule(t.Context(), s, Schedule{Name: "hourly", Spec: "@hourly", Overlap: OverlapAllow}, struct{}{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.RunNow(t.Context(), "hourly", By{}); err != nil {
			t.Fatal(err)
		}
		own := enqueue(t, s, kind, struct{}{}, EnqueueOptions{IdempotencyKey: "mine"})
		crash(t, path, prepare, func(*Job) error { return nil }) // an attempt of each that nobody finished
		for range 10 {
			runDue(t, s)
			time.Sleep(time.Hour)
		}
		for range 2 { // replays, and replays of those
			for id := range jobIDs(t, s, Filter{State: Dead}) {
				if _, err := s.Replay(t.Context(), id, ReplayOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			for range 5 {
				runDue(t, s)
				time.Sleep(time.Hour)
			}
		}
		all := make(map[string]string)
		for first, keys := range seen {
			if len(keys) != 1 {
				t.Errorf("job %s and its replays had %d keys", first, len(keys))
			}
			for key := range keys {
				if other := all[key]; other != "" || key == "" {
					t.Errorf("jobs %s and %s share the key %q", first, other, key)
				}
				all[key] = first
			}
		}
		if len(seen) < len(answers)+4+1+1+10 {
			t.Errorf("only %d jobs ran", len(seen))
		}
		if !seen[own]["mine"] {
			t.Errorf("the enqueuer's own key became %v", seen[own])
		}
	})
}

func TestGuarantee7AScheduleHasOneNextOccurrenceAndNoInstantRunsTwice(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		const kind Kind[struct{}] = "scheduled"
		var mu sync.Mutex // guards ran
		ran := make(map[string]map[string]bool)
		open := func() *Scheduler {
			s := openAt(t, path, Config{PollInterval: -1, LeaseTTL: 24 * time.Hour, Grace: -1, Durability: DurabilityNormal})
			handle(s, kind, Policy{Retry: Retry{Base: time.Minute, MaxAttempts: 3}}, func(ctx context.Context, job *Job) error {
				mu.Lock()
				if job.origin == "" {
					instant := job.Schedule + " " + job.ScheduledFor.String()
					if ran[instant] == nil {
						ran[instant] = make(map[string]bool)
					}
					ran[instant][job.ID] = true
				}
				mu.Unlock()
				if err := work(ctx, time.Duration(rand.Int64N(int64(3*time.Hour)))); err != nil || rand.IntN(3) > 0 {
					return err
				}
				return errors.New("no")
			})
			return s
		}
		names := []string{"wait", "skip", "allow"}
		specs := []string{"0 * * * *", "*/20 * * * *", "@every 45m", "15 3 * * *"}
		change := func(s *Scheduler, name string) error {
			return kind.Schedule(t.Context(), s, Schedule{
				Name: name, Spec: specs[r.IntN(len(specs))], Overlap: Overlap(name),
				Missed: []Missed{MissedOnce, MissedAll, MissedSkip}[r.IntN(3)], CatchUp: 5,
			}, struct{}{})
		}
		s, operator := open(), open() // the one runs, the other is a person's tool
		for _, name := range names {
			if err := change(s, name); err != nil {
				t.Fatal(err)
			}
		}
		paused := make(map[string]bool)
		stop := start(t, s)
		for step := range fewer(250, 50) {
			name := names[r.IntN(len(names))]
			by := []*Scheduler{s, operator}[r.IntN(2)]
			var err error
			switch what := r.IntN(12); {
			case what < 5:
				time.Sleep(time.Duration(r.Int64N(int64(6 * time.Hour))))
			case what == 5:
				err = by.PauseSchedule(t.Context(), name, time.Time{}, By{})
				paused[name] = true
			case what <= 7:
				err = by.ResumeSchedule(t.Context(), name, By{})
				paused[name] = false
			case what <= 9:
				if _, err = by.RunNow(t.Context(), name, By{}); name == "skip" && errors.Is(err, ErrState) {
					err = nil
				}
			case what == 10:
				err = change(by, name)
			default:
				stop()
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(r.Int64N(int64(30 * time.Hour))))
				s = open()
				stop = start(t, s)
			}
			if err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			synctest.Wait()
			heads, err := operator.Schedules(t.Context())
			if err != nil || len(heads) != len(names) {
				t.Fatalf("step %d: %d next occurrences, %v", step, len(heads), err)
			}
			for _, head := range heads {
				if want := map[bool]State{true: Paused, false: Pending}[paused[head.Schedule]]; head.State != want {
					t.Fatalf("step %d: the next occurrence of %s is %s, want %s", step, head.Schedule, head.State, want)
				}
			}
			if step%10 == 0 {
				checkInvariants(t, operator)
			}
		}
		stop()
		for instant, jobs := range ran {
			if len(jobs) > 1 {
				t.Errorf("%s ran as %d jobs", instant, len(jobs))
			}
		}
		if len(ran) < 10 {
			t.Errorf("only %d firings: the test shows too little", len(ran))
		}
	})
}

func TestGuarantee8WhatHasEndedStaysAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		calls := make(map[string]int)
		var mu sync.Mutex // guards calls
		prepare := func(s *Scheduler) {
			call := func(job *Job) {
				mu.Lock()
				defer mu.Unlock()
				calls[job.ID]++
			}
			handle(s, "dies", Policy{Retry: Retry{Base: time.Second, MaxAttempts: 3}}, func(_ context.Context, job *Job) error {
				call(job)
				if job.Priority == 1 {
					return Permanent(errors.New("no"))
				}
				return errors.New("no")
			})
			handle(s, "held", Policy{OnUnknown: UnknownHold}, func(_ context.Context, job *Job) error {
				call(job)
				return Unknown(errors.New("?"))
			})
			handle(s, plain, Policy{}, func(_ context.Context, job *Job) error { call(job); return nil })
			Handle(s, Kind[int]("decodes"), func(_ context.Context, job *Job, _ int) error { call(job); return nil }, Policy{})
		}
		s := openAt(t, path, Config{PollInterval: -1, LeaseTTL: time.Hour})
		prepare(s)
		ended := []string{
			enqueue(t, s, Kind[struct{}]("dies"), struct{}{}, EnqueueOptions{UniqueKey: "k", Group: "g"}),
			enqueue(t, s, Kind[struct{}]("dies"), struct{}{}, EnqueueOptions{Priority: 1}),
			enqueue(t, s, Kind[struct{}]("held"), struct{}{}, EnqueueOptions{Group: "g"}),
			enqueue(t, s, plain, struct{}{}, EnqueueOptions{}),
			enqueue(t, s, Kind[string]("decodes"), "text", EnqueueOptions{}),
		}
		cancelled := enqueue(t, s, plain, struct{}{}, EnqueueOptions{RunAt: time.Now().Add(24 * time.Hour)})
		for range 3 {
			runDue(t, s)
			time.Sleep(time.Minute)
		}
		if err := s.Cancel(t.Context(), cancelled, By{}); err != nil {
			t.Fatal(err)
		}
		ended = append(ended, cancelled)
		where := "id IN ('" + strings.Join(ended, "', '") + "')"
		shown := func(s *Scheduler) string {
			return dump(t, s.DB(), "rota_jobs", where) + dump(t, s.DB(), "rota_attempts", "job_"+where)
		}
		before, callsBefore := shown(s), fmt.Sprint(calls)
		for i, want := range []State{Dead, Dead, Held, Succeeded, Dead, Cancelled} {
			if got := state(t, s, ended[i]); got != want {
				t.Fatalf("job %d is %s, want %s", i, got, want)
			}
		}

		// Life goes on around them: work, replays, crashes, pauses, restarts, years.
		for year := range 5 {
			for range 10 {
				enqueue(t, s, Kind[struct{}]("dies"), struct{}{}, EnqueueOptions{Group: "g"})
				enqueue(t, s, plain, struct{}{}, EnqueueOptions{UniqueKey: "k" + strconv.Itoa(year)})
			}
			crash(t, path, prepare, func(job *Job) error {
				if strings.Contains(strings.Join(ended, " "), job.ID) {
					t.Errorf("an ended job was claimed: %+v", job)
				}
				return nil
			})
			for _, err := range []error{s.Pause(t.Context(), "*", By{}), s.Resume(t.Context(), "*", By{})} {
				if err != nil {
					t.Fatal(err)
				}
			}
			for range 5 {
				runDue(t, s)
				time.Sleep(time.Hour)
			}
			if _, err := s.Replay(t.Context(), ended[year], ReplayOptions{By: By{Reason: "another one does it"}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(365 * 24 * time.Hour)
			replayed := runDue(t, s)
			if len(replayed) == 0 {
				t.Error("the replay did not run")
			}
			if _, err := s.Prune(t.Context(), Succeeded, 6*365*24*time.Hour); err != nil { // older than anything
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openAt(t, path, Config{PollInterval: -1, LeaseTTL: time.Hour})
			prepare(s)
		}
		if after := shown(s); after != before {
			t.Errorf("what had ended was\n%s\nand is\n%s", before, after)
		}
		for _, id := range ended {
			if n := calls[id]; !strings.Contains(callsBefore, fmt.Sprintf("%s:%d", id, n)) && n > 0 {
				t.Errorf("job %s was called %d times; before: %s", id, n, callsBefore)
			}
		}
	})
}
