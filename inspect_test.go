package rota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const plain Kind[struct{}] = "plain"

func succeed(context.Context, *Job) error { return nil }

func TestJobsAreFilteredByAllThatIsAskedAndPagedWithoutAGap(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := open(t, Config{})
	kinds, groups := []string{"a", "b"}, []string{"", "g"}
	labels := []string{"", "plain", "with.dot", "with space", "0", "ключ", "a-b", "percent%", "x'); DROP TABLE rota_jobs; --"}
	for _, kind := range kinds {
		handle(s, Kind[struct{}](kind), Policy{}, func(_ context.Context, job *Job) error {
			if job.Labels["fate"] == "die" {
				return Permanent(errors.New("no"))
			}
			return nil
		})
	}
	for range 450 { // more than two pages
		opts := EnqueueOptions{Group: groups[r.IntN(2)], Labels: map[string]string{"fate": []string{"die", "live"}[r.IntN(2)]}}
		if label := labels[r.IntN(len(labels))]; label != "" {
			opts.Labels[label] = []string{"1", "2"}[r.IntN(2)]
		}
		if r.IntN(2) == 0 {
			opts.RunAt = time.Now().Add(time.Hour)
		}
		enqueue(t, s, Kind[struct{}](kinds[r.IntN(2)]), struct{}{}, opts)
	}
	runDue(t, s)
	all := slices.Collect(jobsOf(t, s, Filter{}))
	if len(all) != 450 {
		t.Fatalf("%d jobs", len(all))
	}
	for range 300 {
		f := Filter{State: []State{"", Pending, Succeeded, Dead, Held}[r.IntN(5)], Kind: []string{"", "a", "b", "none"}[r.IntN(4)], Group: groups[r.IntN(2)]}
		if label := labels[r.IntN(len(labels))]; r.IntN(2) == 0 && label != "" {
			f.Label = [2]string{label, []string{"1", "2", "3"}[r.IntN(3)]}
		}
		if r.IntN(2) == 0 {
			f.After = all[r.IntN(len(all))].ID
		}
		f.Limit = []int{0, 1, 10, 200, 201, 400, 1000}[r.IntN(7)]
		var want []string
		after := f.After == ""
		for _, job := range all {
			if after && (f.State == "" || job.State == f.State) && (f.Kind == "" || job.Kind == f.Kind) && (f.Group == "" || job.Group == f.Group) &&
				(f.Label[0] == "" || job.Labels[f.Label[0]] == f.Label[1]) && (f.Limit == 0 || len(want) < f.Limit) {
				want = append(want, job.ID)
			}
			after = after || job.ID == f.After
		}
		if got := slices.Collect(jobIDs(t, s, f)); !slices.Equal(got, want) {
			t.Fatalf("%+v: %d jobs, want %d", f, len(got), len(want))
		}
	}
	// Page by page, as a list in a browser would.
	var paged []string
	for after := ""; ; after = paged[len(paged)-1] {
		page := slices.Collect(jobIDs(t, s, Filter{After: after, Limit: 7}))
		paged = append(paged, page...)
		if len(page) < 7 {
			break
		}
	}
	if len(paged) != len(all) || !slices.IsSorted(paged) {
		t.Errorf("the pages have %d jobs, in order: %v", len(paged), slices.IsSorted(paged))
	}
	for job, err := range s.Jobs(t.Context(), Filter{After: "no such job"}) {
		if job != nil || !errors.Is(err, ErrNotFound) {
			t.Errorf("after a job that does not exist: %v, %v", job, err)
		}
	}
	for range s.Jobs(t.Context(), Filter{}) {
		break // and nothing is left open, which the end of the test shows
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range s.Jobs(cancelled, Filter{}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("with an ended context: %v", err)
		}
	}
}

func TestJobsMayChangeWhileTheyAreRead(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	handle(s, plain, Policy{}, succeed)
	if _, err := plain.EnqueueMany(t.Context(), s, make([]Entry[struct{}], 600)...); err != nil {
		t.Fatal(err)
	}
	stop := start(t, s) // they end while they are read
	seen := make(map[string]bool)
	for id := range jobIDs(t, s, Filter{}) {
		if seen[id] {
			t.Fatalf("job %s came twice", id)
		}
		seen[id] = true
	}
	if len(seen) != 600 {
		t.Errorf("%d of 600 jobs came", len(seen))
	}
	waitFor(t, "all have ended", func() bool { return len(slices.Collect(jobIDs(t, s, Filter{State: Succeeded}))) == 600 })
	stop()
}

func TestWhatDoesNotExistIsNotFound(t *testing.T) {
	s := open(t, Config{})
	ctx, by := t.Context(), By{}
	for name, err := range map[string]error{
		"job":      func() error { _, err := s.Job(ctx, "x"); return err }(),
		"attempts": func() error { _, err := s.Attempts(ctx, "x"); return err }(),
		"cancel":   s.Cancel(ctx, "x", by),
		"resolve":  s.Resolve(ctx, "x", Succeeded, by),
		"replay":   func() error { _, err := s.Replay(ctx, "x", ReplayOptions{}); return err }(),
	} {
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), " x: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if actions, err := s.Actions(ctx, ""); err != nil || len(actions) != 0 {
		t.Errorf("what failed is on record: %v, %v", actions, err)
	}
}

func TestStatsAreWhatACountGives(t *testing.T) {
	bubble(t, Config{Unwind: time.Second, LeaseTTL: time.Minute}, func(t *testing.T, s *Scheduler) {
		release := make(chan struct{})
		Handle(s, Kind[string]("any"), func(ctx context.Context, job *Job, what string) error {
			switch what {
			case "succeed":
				return nil
			case "succeed at last":
				if job.Attempt < 3 {
					return errors.New("no")
				}
				return nil
			case "snooze":
				if job.Attempt < 3 {
					return Snooze(time.Second)
				}
				return nil
			case "permanent":
				return Permanent(errors.New("no"))
			case "timeout":
				return ctx.Err()
			case "hang":
				<-release
				return nil
			case "run":
				return work(ctx, 1000*time.Hour)
			}
			return errors.New("no")
		}, Policy{Timeout: -1, Retry: Retry{Base: time.Minute, Jitter: NoJitter(), MaxAttempts: 3}})
		handle(s, "held", Policy{OnUnknown: UnknownHold, Timeout: time.Second, Retry: Retry{MaxAttempts: 1}}, func(ctx context.Context, _ *Job) error {
			<-release
			return nil
		})
		handle(s, "stopped", Policy{}, succeed)
		count := map[string]int{"succeed": 5, "succeed at last": 3, "snooze": 1, "permanent": 2, "fail": 4, "run": 2}
		for what, n := range count {
			for range n {
				enqueue(t, s, Kind[string]("any"), what, EnqueueOptions{})
			}
		}
		for range 2 {
			enqueue(t, s, Kind[struct{}]("held"), struct{}{}, EnqueueOptions{})
		}
		enqueue(t, s, Kind[struct{}]("stopped"), struct{}{}, EnqueueOptions{})
		for range 3 {
			enqueue(t, s, Kind[struct{}]("nobody's"), struct{}{}, EnqueueOptions{})
		}
		enqueue(t, s, Kind[struct{}]("nobody's"), struct{}{}, EnqueueOptions{RunAt: time.Now().Add(24 * time.Hour)})
		for _, kind := range []string{"stopped", "another"} {
			if err := s.Pause(t.Context(), kind, By{}); err != nil {
				t.Fatal(err)
			}
		}
		late := time.Now().Add(2 * time.Minute)
		enqueue(t, s, Kind[string]("any"), "succeed", EnqueueOptions{RunAt: late}) // counts from then
		unwanted := enqueue(t, s, Kind[string]("any"), "fail", EnqueueOptions{RunAt: time.Now().Add(time.Hour)})
		if err := s.Cancel(t.Context(), unwanted, By{}); err != nil {
			t.Fatal(err)
		}
		if err := plain.Schedule(t.Context(), s, Schedule{Name: "nightly", Spec: "@daily"}, struct{}{}); err != nil {
			t.Fatal(err)
		}
		if err := s.PauseSchedule(t.Context(), "nightly", time.Time{}, By{}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		got, err := s.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := map[State]int{Succeeded: 5 + 3 + 1 + 1, Dead: 2 + 4, Running: 2, Held: 2, Pending: 1 + 4, Cancelled: 1, Paused: 1}
		if !maps.Equal(got.States, want) {
			t.Errorf("states %v, want %v", got.States, want)
		}
		sum := 0
		for _, n := range got.States {
			sum += n
		}
		if all := len(slices.Collect(jobIDs(t, s, Filter{}))); sum != all {
			t.Errorf("the states' sum is %d, there are %d jobs", sum, all)
		}
		if got.Exhausted != 4 || got.Held != 2 || got.Hung != 2 {
			t.Errorf("exhausted %d, held %d, hung %d", got.Exhausted, got.Held, got.Hung)
		}
		if got.Overdue != 4 || got.OldestOverdue != got.At.Sub(begin) {
			t.Errorf("overdue %d, the oldest %v; want 4, %v", got.Overdue, got.OldestOverdue, got.At.Sub(begin))
		}
		if !maps.Equal(got.Unclaimable, map[string]int{"nobody's": 4}) {
			t.Errorf("unclaimable %v", got.Unclaimable)
		}
		if !slices.Equal(got.Paused, []string{"another", "stopped"}) {
			t.Errorf("paused %v", got.Paused)
		}
		if got.Lease.Holder != s.name || got.Lease.Token != 1 || got.Lease.TTL != time.Minute || !got.Lease.AcquiredAt.Equal(begin) ||
			got.LeaseAge != got.At.Sub(got.Lease.RenewedAt) || got.LeaseAge > 20*time.Second {
			t.Errorf("lease %+v, %v old", got.Lease, got.LeaseAge)
		}
		attempts := map[string]int{"succeeded/ok": 5 + 3 + 1 + 1, "retry/error": 3*2 + 4*2, "failed/error": 4, "failed/permanent": 2, "snoozed/snooze": 2, "unknown/timeout": 2}
		shown := make(map[string]int)
		for _, a := range got.Attempts {
			shown[string(a.Outcome)+"/"+a.Class] = a.Count
		}
		if !maps.Equal(shown, attempts) {
			t.Errorf("attempts %v, want %v", shown, attempts)
		}
		if got.RetriedJobs != 3+4 || got.RetrySuccess != 3.0/7 {
			t.Errorf("%d retried jobs, of which %v ended well", got.RetriedJobs, got.RetrySuccess)
		}
		// Three of ten came after 1 + 2 minutes, one after two snoozes of a
		// second, the late one at once when its time had come.
		if mean := (3*3*time.Minute + 2*time.Second) / 10; got.ToSuccess != (Spread{10, mean, 3 * time.Minute}) {
			t.Errorf("to success: %+v, want a mean of %v", got.ToSuccess, mean)
		}
		cancel()
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got, err = s.Stats(t.Context()); err != nil || got.Lease.Holder != "" || got.LeaseAge != 0 || got.Hung != 0 {
			t.Errorf("after the end: %+v, %v", got.Lease, err)
		}
	})
}

func TestStatsOfAnEmptyDatabaseAreZero(t *testing.T) {
	s := open(t, Config{})
	got, err := s.Stats(t.Context())
	if err != nil || len(got.States) != 0 || got.Overdue != 0 || got.OldestOverdue != 0 || got.RetrySuccess != 0 || got.ToSuccess != (Spread{}) || got.Lease != (Lease{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReplayMakesANewJobAndLeavesTheOldOneByteForByte(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		const kind Kind[chargeArgs] = "replayed"
		fate := error(nil)
		var keys []string
		Handle(s, kind, func(_ context.Context, job *Job, args chargeArgs) error {
			keys = append(keys, job.IdempotencyKey)
			if args.Cents != 100 {
				t.Errorf("arguments %+v", args)
			}
			return fate
		}, Policy{OnUnknown: UnknownHold, Retry: Retry{MaxAttempts: 2}})
		own := &Retry{MaxAttempts: 2, Base: time.Second}
		for state, end := range map[State]error{Succeeded: nil, Dead: errors.New("no"), Held: Unknown(errors.New("?")), Cancelled: nil} {
			keys = nil
			fate = end
			opts := EnqueueOptions{Priority: 3, Group: "g", Labels: map[string]string{"account": "7"}, Retry: own, IdempotencyKey: "key " + string(state), UniqueKey: "u" + string(state)}
			old := enqueue(t, s, kind, chargeArgs{100}, opts)
			if state == Cancelled {
				if err := s.Cancel(t.Context(), old, By{}); err != nil {
					t.Fatal(err)
				}
			}
			runUntilIdle(t, s)
			before := dump(t, s.DB(), "rota_jobs", "id = $1", old) + dump(t, s.DB(), "rota_attempts", "job_id = $1", old)
			orig := jobOf(t, s, old)
			if orig.State != state {
				t.Fatalf("the original is %s, want %s", orig.State, state)
			}
			tried := len(keys)

			fate = errors.New("once more")
			answer, err := s.Replay(t.Context(), old, ReplayOptions{By: By{Actor: "anna", Reason: "provider is back"}})
			if err != nil {
				t.Fatalf("%s: %v", state, err)
			}
			job := jobOf(t, s, answer.ID)
			wantKey := "u" + string(state)
			if state == Held {
				wantKey = "" // the held one keeps it
			}
			if job.ID == old || answer.Duplicate || job.State != Pending || job.ReplayOf != old || string(job.Args) != string(orig.Args) || job.Priority != 3 ||
				job.Group != "g" || job.Labels["account"] != "7" || *job.Retry != *own || job.IdempotencyKey != opts.IdempotencyKey || job.UniqueKey != wantKey ||
				job.Attempt != 0 || job.spent != 0 || job.doubt {
				t.Errorf("%s: the replay is %+v", state, job)
			}
			runUntilIdle(t, s)
			if job = jobOf(t, s, answer.ID); job.Attempt != 2 || job.State != Dead {
				t.Errorf("%s: the replay has had %d attempts and is %s", state, job.Attempt, job.State)
			}
			again, err := s.Replay(t.Context(), answer.ID, ReplayOptions{NewIdempotencyKey: true, RunAt: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			fresh := jobOf(t, s, again.ID)
			if fresh.IdempotencyKey == opts.IdempotencyKey || fresh.IdempotencyKey == "" || fresh.ReplayOf != answer.ID || time.Until(fresh.RunAt) != time.Hour {
				t.Errorf("%s: the second replay is %+v", state, fresh)
			}
			fate = nil
			runUntilIdle(t, s)
			for _, key := range keys[:tried+2] {
				if key != opts.IdempotencyKey {
					t.Errorf("%s: a handler saw the key %q", state, key)
				}
			}
			if after := dump(t, s.DB(), "rota_jobs", "id = $1", old) + dump(t, s.DB(), "rota_attempts", "job_id = $1", old); after != before {
				t.Errorf("%s: the original was\n%s\nand is\n%s", state, before, after)
			}
			actions, err := s.Actions(t.Context(), old)
			if err != nil || len(actions) == 0 {
				t.Fatalf("actions %v, %v", actions, err)
			}
			last := actions[len(actions)-1]
			if last.Action != "replay" || last.Actor != "anna" || last.Reason != "provider is back" || last.Detail != `{"as":"`+answer.ID+`"}` || last.At.IsZero() {
				t.Errorf("%s: on record is %+v", state, last)
			}
		}
	})
}

func TestReplayRefusesWhatWillRunByItselfAndRespectsUniqueKeys(t *testing.T) {
	s := open(t, Config{})
	release := make(chan struct{})
	handle(s, plain, Policy{}, func(_ context.Context, job *Job) error {
		if job.Labels["wait"] != "" {
			<-release
		}
		return Permanent(errors.New("no"))
	})
	once := enqueue(t, s, plain, struct{}{}, EnqueueOptions{UniqueKey: "once", Once: true})
	keyed := enqueue(t, s, plain, struct{}{}, EnqueueOptions{UniqueKey: "k"})
	runDue(t, s)
	live := enqueue(t, s, plain, struct{}{}, EnqueueOptions{UniqueKey: "k", Labels: map[string]string{"wait": "1"}})
	if answer, err := s.Replay(t.Context(), keyed, ReplayOptions{}); err != nil || !answer.Duplicate || answer.ID != live {
		t.Errorf("replay beside a live job with its key: %+v, %v", answer, err)
	}
	if _, err := s.Replay(t.Context(), live, ReplayOptions{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "pending") {
		t.Errorf("replay of a pending job: %v", err)
	}
	stop := start(t, s)
	waitFor(t, "it runs", func() bool { return state(t, s, live) == Running })
	if _, err := s.Replay(t.Context(), live, ReplayOptions{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "running") {
		t.Errorf("replay of a running job: %v", err)
	}
	close(release)
	waitFor(t, "it has ended", func() bool { return state(t, s, live) == Dead })
	answer, err := s.Replay(t.Context(), once, ReplayOptions{})
	if err != nil || answer.Duplicate {
		t.Fatalf("replay of a job with a key for ever: %+v, %v", answer, err)
	}
	waitFor(t, "the replay has ended", func() bool { return state(t, s, answer.ID) == Dead })
	stop()
	if again, err := plain.Enqueue(t.Context(), s, struct{}{}, EnqueueOptions{UniqueKey: "once", Once: true}); err != nil || again.ID != once || !again.Duplicate {
		t.Errorf("the key for ever is %+v, %v", again, err)
	}
}

func TestResolveEndsAHeldJobAndNoOther(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		handle(s, "doubtful", Policy{OnUnknown: UnknownHold}, func(context.Context, *Job) error { return Unknown(errors.New("?")) })
		for _, as := range []State{Succeeded, Dead} {
			id := enqueue(t, s, Kind[struct{}]("doubtful"), struct{}{}, EnqueueOptions{UniqueKey: "k"})
			if err := s.Resolve(t.Context(), id, as, By{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "pending") {
				t.Errorf("resolve a pending job: %v", err)
			}
			runDue(t, s)
			if answer, err := Kind[struct{}]("doubtful").Enqueue(t.Context(), s, struct{}{}, EnqueueOptions{UniqueKey: "k"}); err != nil || answer.ID != id {
				t.Errorf("a held job keeps its key: %+v, %v", answer, err)
			}
			for _, wrong := range []State{Cancelled, Pending, Held, "", "done"} {
				if err := s.Resolve(t.Context(), id, wrong, By{}); !errors.Is(err, ErrInvalid) {
					t.Errorf("resolve as %q: %v", wrong, err)
				}
			}
			before := dump(t, s.DB(), "rota_attempts", "job_id = $1", id)
			time.Sleep(time.Hour)
			if err := s.Resolve(t.Context(), id, as, By{Actor: "bert\x1b[2J", Reason: "saw it in the provider's list"}); err != nil {
				t.Fatal(err)
			}
			job := jobOf(t, s, id)
			if job.State != as || job.Reason != "resolved" || !job.FinishedAt.Equal(time.Now()) || job.Error != "?" {
				t.Errorf("%+v", job)
			}
			if after := dump(t, s.DB(), "rota_attempts", "job_id = $1", id); after != before {
				t.Errorf("the evidence was\n%s\nand is\n%s", before, after)
			}
			actions, err := s.Actions(t.Context(), id)
			if err != nil || len(actions) != 1 || actions[0].Action != "resolve" || actions[0].Actor != `bert\x1b[2J` ||
				actions[0].Reason != "saw it in the provider's list" || actions[0].Detail != `{"as":"`+string(as)+`"}` || actions[0].Kind != "doubtful" {
				t.Errorf("on record: %+v, %v", actions, err)
			}
			if err := s.Resolve(t.Context(), id, as, By{}); !errors.Is(err, ErrState) {
				t.Errorf("resolve it again: %v", err)
			}
			time.Sleep(1000 * time.Hour)
			if n := len(runDue(t, s)); n != 0 {
				t.Errorf("%d attempts after it was resolved", n)
			}
		}
	})
}

func TestCancelEndsWhatHasNotEnded(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		handle(s, "fails", Policy{}, func(context.Context, *Job) error { return errors.New("no") })
		handle(s, "doubtful", Policy{OnUnknown: UnknownHold}, func(context.Context, *Job) error { return Unknown(errors.New("?")) })
		future := enqueue(t, s, plain, struct{}{}, EnqueueOptions{RunAt: time.Now().Add(time.Hour)})
		retried := enqueue(t, s, Kind[struct{}]("fails"), struct{}{}, EnqueueOptions{})
		held := enqueue(t, s, Kind[struct{}]("doubtful"), struct{}{}, EnqueueOptions{})
		runDue(t, s)
		if err := plain.Schedule(t.Context(), s, Schedule{Name: "nightly", Spec: "@daily"}, struct{}{}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			id       string
			attempts int
			was      State
		}{{future, 0, Pending}, {retried, 1, Pending}, {held, 1, Held}} {
			if err := s.Cancel(t.Context(), c.id, By{Actor: "anna", Reason: "not wanted"}); err != nil {
				t.Fatal(err)
			}
			if job := jobOf(t, s, c.id); job.State != Cancelled || job.Reason != "cancelled" || job.FinishedAt.IsZero() || job.Attempt != c.attempts {
				t.Errorf("%+v", job)
			}
			if err := s.Cancel(t.Context(), c.id, By{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "cancelled") {
				t.Errorf("cancel it again: %v", err)
			}
			actions, err := s.Actions(t.Context(), c.id)
			if err != nil || len(actions) != 1 || actions[0].Actor != "anna" || actions[0].Detail != `{"state":"`+string(c.was)+`"}` {
				t.Errorf("on record: %+v, %v", actions, err)
			}
		}
		heads, err := s.Schedules(t.Context())
		if err != nil || len(heads) != 1 {
			t.Fatalf("%v, %v", heads, err)
		}
		if err := s.Cancel(t.Context(), heads[0].ID, By{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "nightly") {
			t.Errorf("cancel a schedule's next occurrence: %v", err)
		}
		handle(s, plain, Policy{}, succeed)
		time.Sleep(2 * time.Hour)
		for _, a := range runDue(t, s) {
			if a.JobID == future || a.JobID == retried || a.JobID == held {
				t.Errorf("a cancelled job ran: %+v", a)
			}
		}
	})
}

func TestCancelReachesARunningHandlerAlsoFromAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{Unwind: 50 * time.Millisecond})
	other := openAt(t, path, Config{}) // never runs anything
	release := make(chan struct{})
	defer func() {
		close(release)
		waitFor(t, "the hung handlers have returned", func() bool { return s.hung.Load() == 0 })
	}()
	Handle(s, Kind[string]("runs"), func(ctx context.Context, job *Job, then string) error {
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, ErrCancelled) {
			t.Errorf("the context ended with %v", cause)
		}
		switch then {
		case "error":
			return ctx.Err()
		case "retry":
			return RetryAfter(time.Hour, ctx.Err())
		case "snooze":
			return Snooze(time.Hour)
		case "unknown":
			return Unknown(ctx.Err())
		case "permanent":
			return Permanent(ctx.Err())
		case "panic":
			panic("no")
		case "hang":
			<-release
		}
		return nil
	}, Policy{Timeout: -1})
	for _, by := range []*Scheduler{s, other} {
		for then, want := range map[string]struct {
			state State
			story string
		}{
			"error":     {Cancelled, "cancelled/cancelled"},
			"retry":     {Cancelled, "cancelled/cancelled"},
			"snooze":    {Cancelled, "snoozed/snooze"},
			"unknown":   {Cancelled, "unknown/unknown"},
			"permanent": {Dead, "failed/permanent"},
			"panic":     {Cancelled, "failed/panic"},
			"success":   {Succeeded, "succeeded/ok"},
			"hang":      {Cancelled, "cancelled/cancelled"},
		} {
			id := enqueue(t, s, Kind[string]("runs"), then, EnqueueOptions{})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { // RunDue as well as Run must hear of it
				defer close(done)
				var err error
				if then == "error" || then == "success" {
					_, err = s.RunDue(ctx)
				} else {
					err = s.Run(ctx)
				}
				if err != nil && !errors.Is(err, ErrHandlersLeft) {
					t.Error(err)
				}
			}()
			waitFor(t, "it runs", func() bool { return state(t, s, id) == Running })
			if err := by.Cancel(t.Context(), id, By{}); err != nil {
				t.Fatal(err)
			}
			waitFor(t, then+": it has ended", func() bool { return state(t, s, id).Terminal() })
			if then != "error" && then != "success" {
				cancel()
			}
			<-done
			cancel()
			if got := story(t, s, id); state(t, s, id) != want.state || got != want.story {
				t.Errorf("%s: %s, %s; want %s, %s", then, state(t, s, id), got, want.state, want.story)
			}
			if a := attemptsOf(t, s, id)[0]; !a.NextAt.IsZero() || a.Decision != want.state {
				t.Errorf("%s: %+v", then, a)
			}
		}
	}
}

func TestACancelThatTheRunnerDiedBeforeHearingCountsForTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{})
	id := enqueue(t, s, plain, struct{}{}, EnqueueOptions{})
	prepare := func(s *Scheduler) { handle(s, plain, Policy{}, succeed) }
	crash(t, path, prepare, func(*Job) error { return s.Cancel(t.Context(), id, By{}) })
	prepare(s)
	runDue(t, s)
	if got := story(t, s, id); state(t, s, id) != Cancelled || got != "unknown/process_died" {
		t.Errorf("%s: %s", state(t, s, id), got)
	}
}

func TestAPauseHoldsThroughRestartsUntilItIsResumed(t *testing.T) {
	for _, paused := range []string{"plain", "*"} {
		path := filepath.Join(t.TempDir(), "rota.db")
		s := openAt(t, path, Config{})
		if err := s.Pause(t.Context(), paused, By{Actor: "anna", Reason: "provider is down"}); err != nil {
			t.Fatal(err)
		}
		if err := s.Pause(t.Context(), paused, By{Actor: "bert"}); err != nil { // again: no change
			t.Fatal(err)
		}
		id := enqueue(t, s, plain, struct{}{}, EnqueueOptions{})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s = openAt(t, path, Config{})
			handle(s, plain, Policy{}, succeed)
			runDue(t, s)
			if got := state(t, s, id); got != Pending {
				t.Fatalf("paused, it is %s", got)
			}
			if stats, err := s.Stats(t.Context()); err != nil || !slices.Equal(stats.Paused, []string{paused}) {
				t.Errorf("paused: %v, %v", stats.Paused, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		s = openAt(t, path, Config{})
		handle(s, plain, Policy{}, succeed)
		stop := start(t, s)
		if err := openAt(t, path, Config{}).Resume(t.Context(), paused, By{Actor: "anna"}); err != nil { // from another process
			t.Fatal(err)
		}
		waitFor(t, "it has run", func() bool { return state(t, s, id) == Succeeded })
		stop()
		actions, err := s.Actions(t.Context(), "")
		var words []string
		for _, a := range actions {
			words = append(words, a.Actor+" "+a.Action+" "+a.Kind)
		}
		if want := []string{"anna pause " + paused, "bert pause " + paused, "anna resume " + paused}; err != nil || !slices.Equal(words, want) {
			t.Errorf("on record: %q, %v", words, err)
		}
	}
	s := open(t, Config{})
	for _, name := range []string{"", "two words", strings.Repeat("x", 201)} {
		if err := errors.Join(s.Pause(t.Context(), name, By{}), s.Resume(t.Context(), name, By{})); !errors.Is(err, ErrInvalid) {
			t.Errorf("pause %.10q: %v", name, err)
		}
	}
}

func TestResumingAllLeavesThePausesOfSingleKinds(t *testing.T) {
	s := open(t, Config{})
	handle(s, plain, Policy{}, succeed)
	handle(s, "other", Policy{}, succeed)
	for _, kind := range []string{"plain", "*"} {
		if err := s.Pause(t.Context(), kind, By{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Resume(t.Context(), "*", By{}); err != nil {
		t.Fatal(err)
	}
	a, b := enqueue(t, s, plain, struct{}{}, EnqueueOptions{}), enqueue(t, s, Kind[struct{}]("other"), struct{}{}, EnqueueOptions{})
	runDue(t, s)
	if state(t, s, a) != Pending || state(t, s, b) != Succeeded {
		t.Errorf("the paused one is %s, the other %s", state(t, s, a), state(t, s, b))
	}
}

func TestAfterAPauseIsAnsweredNothingIsClaimed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{MaxRunning: 16})
	operator := openAt(t, path, Config{})
	handle(s, plain, Policy{}, succeed)
	handle(s, "sentinel", Policy{}, succeed)
	stop := start(t, s)
	left := 0 // by the pauses
	for round := range fewer(20, 6) {
		by := []*Scheduler{s, operator}[round%2]
		if _, err := plain.EnqueueMany(t.Context(), s, make([]Entry[struct{}], fewer(200, 50))...); err != nil {
			t.Fatal(err)
		}
		if err := by.Pause(t.Context(), "plain", By{}); err != nil {
			t.Fatal(err)
		}
		answered := time.Now()
		// That the sentinel ran shows that the runner has looked since.
		sentinel := enqueue(t, s, Kind[struct{}]("sentinel"), struct{}{}, EnqueueOptions{})
		waitFor(t, "the sentinel has run", func() bool { return state(t, s, sentinel) == Succeeded })
		claimed, err := texts(t.Context(), s.DB(), `
			SELECT id FROM rota_attempts JOIN rota_jobs ON id = job_id WHERE kind = 'plain' AND claimed_at > $1`, micros(answered))
		if err != nil || len(claimed) > 0 {
			t.Fatalf("round %d: %d jobs were claimed after the pause was answered, %v", round, len(claimed), err)
		}
		left += len(slices.Collect(jobIDs(t, s, Filter{Kind: "plain", State: Pending})))
		if err := by.Resume(t.Context(), "plain", By{}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	done := len(slices.Collect(jobIDs(t, s, Filter{Kind: "plain", State: Succeeded})))
	if done == 0 || left == 0 {
		t.Errorf("%d jobs ran and %d were left by the pauses: the test shows nothing", done, left)
	}
}

func TestPruneRemovesByStateAndAgeAndNothingElse(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		handle(s, plain, Policy{Retry: Retry{Base: time.Nanosecond, MaxAttempts: 2}}, func(_ context.Context, job *Job) error {
			if job.Labels["fate"] == "die" {
				return errors.New("no")
			}
			return nil
		})
		die := map[string]string{"fate": "die"}
		batch := func(n int, labels map[string]string) {
			t.Helper()
			entries := make([]Entry[struct{}], n)
			for i := range entries {
				entries[i].Labels = labels
			}
			if _, err := plain.EnqueueMany(t.Context(), s, entries...); err != nil {
				t.Fatal(err)
			}
			runUntilIdle(t, s)
		}
		many := fewer(2, 1)*pruneBatch + 50 // all of one instant
		batch(many, nil)
		batch(30, die)
		once := enqueue(t, s, plain, struct{}{}, EnqueueOptions{UniqueKey: "k", Once: true})
		runDue(t, s)
		time.Sleep(24 * time.Hour)
		batch(40, nil)
		batch(5, die)
		pending := enqueue(t, s, plain, struct{}{}, EnqueueOptions{RunAt: time.Now().Add(time.Hour)})
		count := func(table string) (n int) {
			t.Helper()
			if err := s.DB().QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for _, wrong := range []struct {
			state State
			age   time.Duration
		}{{Pending, 0}, {Running, 0}, {Held, 0}, {Paused, 0}, {"", 0}, {Succeeded, -1}} {
			if _, err := s.Prune(t.Context(), wrong.state, wrong.age); !errors.Is(err, ErrInvalid) {
				t.Errorf("prune %q, %v: %v", wrong.state, wrong.age, err)
			}
		}
		prune := func(state State, age time.Duration, want, jobs, attempts int) {
			t.Helper()
			n, err := s.Prune(t.Context(), state, age)
			if err != nil || n != want || count("rota_jobs") != jobs || count("rota_attempts") != attempts {
				t.Errorf("prune %s, %v: %d, %v; %d jobs and %d attempts are left; want %d; %d and %d", state, age, n, err, count("rota_jobs"), count("rota_attempts"), want, jobs, attempts)
			}
			checkInvariants(t, s)
		}
		jobs, attempts := many+30+1+40+5+1, many+60+1+40+10
		prune(Cancelled, 0, 0, jobs, attempts)
		prune(Succeeded, 25*time.Hour, 0, jobs, attempts)
		prune(Dead, time.Hour, 30, jobs-30, attempts-60)
		prune(Succeeded, time.Hour, many, jobs-many-30, attempts-many-60)
		time.Sleep(time.Second)
		prune(Succeeded, 0, 40, 7, 11)
		if state(t, s, once) != Succeeded || state(t, s, pending) != Pending {
			t.Error("what must stay is gone")
		}
		// The triggers are on guard again.
		for _, statement := range []string{`DELETE FROM rota_attempts`, `DELETE FROM rota_jobs WHERE state = 'dead'`} {
			if _, err := s.DB().Exec(statement); err == nil {
				t.Errorf("%s goes through after a prune", statement)
			}
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if n, err := s.Prune(cancelled, Dead, 0); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("prune with an ended context: %d, %v", n, err)
		}
	})
}

func TestABackupIsWholeWhileOthersWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openAt(t, filepath.Join(dir, "rota.db"), Config{})
	if _, err := s.DB().Exec(`CREATE TABLE mine (id TEXT PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	handle(s, plain, Policy{Retry: Retry{Base: time.Millisecond}}, func(_ context.Context, job *Job) error {
		if job.Attempt == 1 && strings.HasSuffix(job.ID, "0") {
			return errors.New("no")
		}
		return nil
	})
	stop := start(t, s)
	var over atomic.Bool
	var mu sync.Mutex // guards acknowledged
	var acknowledged []string
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !over.Load() {
				tx, err := s.DB().Begin()
				if err != nil {
					t.Error(err)
					return
				}
				answer, err := plain.EnqueueTx(t.Context(), s, tx, struct{}{}, EnqueueOptions{})
				if err == nil {
					_, err = tx.Exec(`INSERT INTO mine VALUES ($1)`, answer.ID)
				}
				if err = errors.Join(err, tx.Commit()); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged = append(acknowledged, answer.ID)
				mu.Unlock()
			}
		})
	}
	for i := range 5 {
		waitFor(t, "there is something to copy", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) > 50*i
		})
		mu.Lock()
		before := slices.Clone(acknowledged)
		mu.Unlock()
		path := filepath.Join(dir, fmt.Sprintf("copy %d #?.db", i))
		if err := s.Backup(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if err := s.Backup(t.Context(), path); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a backup onto a file that exists: %v", err)
		}
		copied := openAt(t, path, Config{})
		checkInvariants(t, copied)
		var jobs, mine int
		err := copied.DB().QueryRow(`SELECT (SELECT count(*) FROM rota_jobs), (SELECT count(*) FROM mine)`).Scan(&jobs, &mine)
		if err != nil || jobs != mine || jobs < len(before) {
			t.Errorf("the copy has %d jobs and %d rows of the application, %v; %d were acknowledged before it", jobs, mine, err, len(before))
		}
		for _, id := range before {
			if _, err := copied.Job(t.Context(), id); err != nil {
				t.Fatalf("a job that was acknowledged before the copy: %v", err)
			}
		}
	}
	over.Store(true)
	wg.Wait()
	stop()
	if err := s.Backup(t.Context(), filepath.Join(dir, "no", "such", "folder")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a backup into nowhere: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), "incomplete") {
			t.Errorf("%s was left behind", e.Name())
		}
	}
}

func TestTheFutureIsOneQuery(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		now := time.Now()
		second := enqueue(t, s, plain, struct{}{}, EnqueueOptions{RunAt: now.Add(2 * time.Hour)})
		first := enqueue(t, s, plain, struct{}{}, EnqueueOptions{RunAt: now.Add(time.Hour)})
		if err := plain.Schedule(t.Context(), s, Schedule{Name: "next", Spec: "@every 3h"}, struct{}{}); err != nil {
			t.Fatal(err)
		}
		rows, err := s.DB().Query(`SELECT id, run_at, schedule FROM rota_jobs WHERE state = 'pending' ORDER BY run_at`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var future []string
		for rows.Next() {
			var id string
			var at int64
			var schedule sql.NullString
			if err := rows.Scan(&id, &at, &schedule); err != nil {
				t.Fatal(err)
			}
			if schedule.Valid {
				id = schedule.String
			}
			future = append(future, fmt.Sprintf("%s in %v", id, fromMicros(at).Sub(now)))
		}
		if want := []string{first + " in 1h0m0s", second + " in 2h0m0s", "next in 3h0m0s"}; !slices.Equal(future, want) {
			t.Errorf("%q, want %q", future, want)
		}
	})
}
