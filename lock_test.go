package rota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Kinds of the processes that compete for the lease.
const (
	blocking Kind[int]    = "blocking" // its handler waits for its context's end
	quick    Kind[string] = "quick"
)

func init() {
	// runner PATH TTL: runs jobs of the kind blocking. It says when a handler
	// begins, and tells what came of every way to write once its context ended.
	childRoles["runner"] = func(args []string) {
		ttl, err := time.ParseDuration(args[1])
		if err != nil {
			childFatal(err)
		}
		s, err := Open(args[0], Config{LeaseTTL: ttl})
		if err != nil {
			childFatal(err)
		}
		Handle(s, blocking, func(ctx context.Context, job *Job, n int) error {
			fmt.Println("began")
			<-ctx.Done()
			say := func(what string, err error) {
				if errors.Is(err, ErrLeaseLost) {
					err = ErrLeaseLost
				}
				fmt.Printf("%s: %v\n", what, err)
			}
			say("cause", context.Cause(ctx))
			tx, err := s.DB().Begin()
			if err != nil {
				childFatal(err)
			}
			say("complete", job.CompleteTx(context.Background(), tx))
			if err := tx.Rollback(); err != nil {
				childFatal(err)
			}
			say("write", s.writer.doFenced(context.Background(), job.token, func(ctx context.Context, tx Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE rota_jobs SET error = 'written by a runner that was replaced'")
				return err
			}))
			return nil // it says that it succeeded, too late
		}, Policy{})
		if err := s.Run(childContext()); err != nil {
			childFatal(err)
		}
		if err := s.Close(); err != nil {
			childFatal(err)
		}
	}
}

// tenure is one holder's time, as a trigger has recorded it.
type tenure struct {
	token   int64
	holder  string
	taken   time.Duration // after the last sign of life of the holder before
	ttlThen time.Duration // of the holder before
}

// recordTenures makes the database itself keep every change of the lease's
// token; a token that repeats fails the one who takes it.
func recordTenures(t *testing.T, s *Scheduler) {
	t.Helper()
	_, err := s.DB().Exec(`
		CREATE TABLE tenures (token INTEGER PRIMARY KEY, holder TEXT NOT NULL, taken INTEGER NOT NULL, ttl INTEGER NOT NULL);
		CREATE TRIGGER first_tenure AFTER INSERT ON rota_leases
		BEGIN INSERT INTO tenures VALUES (NEW.token, NEW.holder, 0, 0); END;
		CREATE TRIGGER next_tenure AFTER UPDATE ON rota_leases WHEN NEW.token <> OLD.token
		BEGIN INSERT INTO tenures VALUES (NEW.token, NEW.holder, NEW.acquired_at - OLD.renewed_at, OLD.ttl); END`)
	if err != nil {
		t.Fatal(err)
	}
}

func tenures(t *testing.T, s *Scheduler) []tenure {
	t.Helper()
	rows, err := s.DB().Query("SELECT token, holder, taken * 1000, ttl * 1000 FROM tenures ORDER BY token")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []tenure
	for rows.Next() {
		var one tenure
		if err := rows.Scan(&one.token, &one.holder, &one.taken, &one.ttlThen); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func leaseOf(t *testing.T, s *Scheduler) Lease {
	t.Helper()
	lease, err := readLease(t.Context(), s.DB())
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestTheTokenGrowsByOneAtEveryChangeOfHolderAndNeverRepeats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	first := openAt(t, path, Config{})
	recordTenures(t, first)
	const contenders, each = 3, 6
	var mu sync.Mutex
	holders := make(map[int64]string) // by token, as the holders themselves saw it
	var wg sync.WaitGroup
	for range contenders {
		s := openAt(t, path, Config{})
		Handle(s, quick, func(ctx context.Context, job *Job, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if other := holders[job.token]; other != "" && other != s.name {
				t.Errorf("token %d was given to %s and %s", job.token, other, s.name)
			}
			holders[job.token] = s.name
			return nil
		}, Policy{})
		wg.Go(func() {
			for reigns := 0; reigns < each; {
				if _, err := quick.Enqueue(t.Context(), s, "", EnqueueOptions{}); err != nil {
					t.Error(err)
					return
				}
				_, err := s.RunDue(t.Context())
				if err == nil {
					reigns++
				} else if !errors.Is(err, ErrLeaseHeld) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	all := tenures(t, first)
	if len(all) != contenders*each {
		t.Errorf("%d tenures, want %d", len(all), contenders*each)
	}
	for i, one := range all {
		if one.token != int64(i+1) || one.holder == "" {
			t.Errorf("tenure %d: %+v", i+1, one)
		}
		if saw := holders[one.token]; saw != "" && saw != one.holder {
			t.Errorf("token %d was %s's and used by %s", one.token, one.holder, saw)
		}
	}
}

func TestACleanStopHandsOverAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	a, b := openAt(t, path, Config{}), openAt(t, path, Config{})
	ran := make(chan string, 1)
	for _, s := range []*Scheduler{a, b} {
		Handle(s, quick, func(ctx context.Context, job *Job, _ string) error { ran <- s.name; return nil }, Policy{})
	}
	stopA := start(t, a)
	waitFor(t, "a is the runner", func() bool { return leaseOf(t, a).Holder == a.name })
	start(t, b)
	if _, err := quick.Enqueue(t.Context(), b, "", EnqueueOptions{}); err != nil {
		t.Fatal(err)
	}
	if by := <-ran; by != a.name {
		t.Errorf("the first job was run by %s", by)
	}
	underOneSecond(t, "a clean stop", func() time.Duration {
		began := time.Now()
		stopA()
		if _, err := quick.Enqueue(t.Context(), a, "", EnqueueOptions{}); err != nil {
			t.Fatal(err)
		}
		<-ran
		return time.Since(began)
	})
}

func TestWorkResumesWithinASecondOfTheRunnersDeath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := openAt(t, path, Config{})
	recordTenures(t, s)
	resumed := make(chan Kind[int], 2)
	Handle(s, blocking, func(ctx context.Context, job *Job, n int) error { resumed <- blocking; return nil }, Policy{})
	c := startChild(t, "runner", path, "10s")
	waitFor(t, "the child is the runner", func() bool { return leaseOf(t, s).Holder != "" })
	orphan, err := blocking.Enqueue(t.Context(), s, 1, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.expect("began")
	start(t, s)
	underOneSecond(t, "to resume work after kill -9, with a TTL of 10 s", func() time.Duration {
		began := time.Now()
		c.kill()
		<-resumed
		return time.Since(began)
	})
	waitFor(t, "the orphan has succeeded", func() bool { return state(t, s, orphan.ID) == Succeeded })
	attempts, err := s.Attempts(t.Context(), orphan.ID)
	if err != nil || len(attempts) != 2 {
		t.Fatalf("attempts %+v, %v", attempts, err)
	}
	if a := attempts[0]; a.Outcome != OutcomeUnknown || a.Class != "process_died" || a.Token != 1 || attempts[1].Token != 2 {
		t.Errorf("evidence: %+v", attempts)
	}
}

// underOneSecond measures f beside a ticker, so that a slow answer can be told
// from a machine that ran nobody: such a time is taken off, and logged.
func underOneSecond(t *testing.T, what string, f func() time.Duration) {
	t.Helper()
	var stall atomic.Int64 // the longest
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		const beat = 5 * time.Millisecond
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			stall.Store(max(stall.Load(), int64(time.Since(last)-beat)))
			last = time.Now()
		}
	})
	took := f()
	cancel()
	watch.Wait()
	t.Logf("%s: %v; the machine stood still for %v at most", what, took, time.Duration(stall.Load()))
	if took-time.Duration(stall.Load()) > time.Second {
		t.Errorf("%s took %v, of which the machine stood still for %v", what, took, time.Duration(stall.Load()))
	}
}

func TestTheLeaseIsRenewedUntilTheLastHandlerHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "app.db")
		cfg := Config{LeaseTTL: 3 * time.Second, Grace: 10 * time.Minute}
		a, b := openAt(t, path, cfg), openAt(t, path, cfg)
		recordTenures(t, a)
		begun := make(chan struct{})
		for _, s := range []*Scheduler{a, b} {
			Handle(s, quick, func(ctx context.Context, job *Job, _ string) error {
				close(begun) // twice, and it panics: nobody else may run it
				time.Sleep(time.Minute)
				return context.Cause(ctx)
			}, Policy{})
		}
		answer, err := quick.Enqueue(t.Context(), a, "", EnqueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		<-begun
		start(t, b)
		stop()
		time.Sleep(59 * time.Second) // of the bubble: some twenty TTLs
		lease := leaseOf(t, a)
		if age := time.Since(lease.RenewedAt); lease.Holder != a.name || age > cfg.LeaseTTL/3+time.Second {
			t.Errorf("while its last handler runs, the lease is %+v, renewed %v ago", lease, age)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if now := state(t, a, answer.ID); now != Succeeded {
			t.Errorf("the job is %s", now)
		}
		time.Sleep(time.Second)
		if all := tenures(t, a); len(all) != 2 || all[0].holder != a.name || all[1].holder != b.name {
			t.Errorf("tenures: %+v", all)
		}
	})
}

func TestARunnerThatCantRenewFencesItselfAndGoesOnIfNobodyTookOver(t *testing.T) {
	const ttl = 9 * time.Second
	for name, age := range map[string]time.Duration{"before its first renewal": time.Second, "after some renewals": 4*ttl + time.Second} {
		t.Run(name, func(t *testing.T) { fencesItself(t, ttl, age) })
	}
}

// fencesItself locks a runner of that age out of its database for some TTLs.
func fencesItself(t *testing.T, ttl, age time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{LeaseTTL: ttl})
		recordTenures(t, s)
		var mu sync.Mutex
		var begun []time.Time
		var causes []error
		seen := func() ([]time.Time, []error) { // so far
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(begun), slices.Clone(causes)
		}
		Handle(s, blocking, func(ctx context.Context, job *Job, n int) error {
			mu.Lock()
			begun = append(begun, time.Now())
			mu.Unlock()
			select {
			case <-ctx.Done():
				mu.Lock()
				defer mu.Unlock()
				causes = append(causes, context.Cause(ctx))
				return ctx.Err()
			case <-time.After(10 * ttl): // many renewals
				return nil
			}
		}, Policy{})
		answer, err := blocking.Enqueue(t.Context(), s, 1, EnqueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		start(t, s)
		time.Sleep(age)
		renewed := leaseOf(t, s).RenewedAt
		release := holdWriteLock(t, s)
		time.Sleep(time.Until(renewed.Add(ttl - time.Millisecond)))
		if begun, causes := seen(); len(begun) != 1 || len(causes) != 0 {
			t.Errorf("shortly before a TTL without a renewal, handlers have begun at %v and ended by %v", begun, causes)
		}
		time.Sleep(2 * time.Millisecond)
		if _, causes := seen(); len(causes) != 1 || !errors.Is(causes[0], ErrLeaseLost) {
			t.Errorf("after a TTL without a renewal, its contexts ended by %v", causes)
		}
		time.Sleep(3 * ttl) // the renewal on its way takes longer than a TTL
		release()
		back := time.Now()
		time.Sleep(ttl)
		if begun, _ := seen(); len(begun) != 2 || begun[1].Sub(back) > ttl/3 {
			t.Errorf("the lock was given back at %v, handlers have begun at %v", back, begun)
		}
		time.Sleep(10 * ttl)
		if _, causes := seen(); len(causes) != 1 {
			t.Errorf("it fenced itself again: %v", causes)
		}
		attempts, err := s.Attempts(t.Context(), answer.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(attempts) != 2 || attempts[0].Outcome != OutcomeInterrupted || attempts[0].Class != "lease_lost" || attempts[1].Outcome != OutcomeSucceeded {
			t.Errorf("evidence: %+v", attempts)
		}
		if all := tenures(t, s); len(all) != 1 {
			t.Errorf("it is not the same term: %+v", all)
		}
	})
}

func TestAReplacedRunnerCanWriteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{LeaseTTL: 3 * time.Second})
		recordTenures(t, s)
		if _, err := s.DB().Exec("CREATE TABLE effects (job TEXT)"); err != nil {
			t.Fatal(err)
		}
		begun, replaced := make(chan struct{}), make(chan struct{})
		Handle(s, quick, func(ctx context.Context, job *Job, _ string) error {
			if job.Attempt > 1 {
				return nil
			}
			close(begun)
			<-replaced
			tx, err := s.DB().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if _, err := tx.Exec("INSERT INTO effects VALUES ($1)", job.ID); err != nil {
				return err
			}
			if err := job.CompleteTx(ctx, tx); !errors.Is(err, ErrLeaseLost) {
				t.Errorf("complete: %v", err)
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, ErrLeaseLost) {
				t.Errorf("its context ended with %v", cause)
			}
			return nil
		}, Policy{})
		answer, err := quick.Enqueue(t.Context(), s, "", EnqueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stop := start(t, s)
		<-begun
		// Another took over and was gone before it did anything.
		if _, err := s.DB().Exec("UPDATE rota_leases SET holder = 'another', token = token + 1, locked = 0"); err != nil {
			t.Fatal(err)
		}
		close(replaced)
		time.Sleep(time.Minute)
		synctest.Wait()
		if now := state(t, s, answer.ID); now != Succeeded {
			t.Errorf("the job is %s", now)
		}
		attempts, err := s.Attempts(t.Context(), answer.ID)
		if err != nil || len(attempts) != 2 {
			t.Fatalf("attempts %+v, %v", attempts, err)
		}
		if a := attempts[0]; a.Outcome != OutcomeUnknown || a.Class != "process_died" || a.Token != 1 || attempts[1].Token != 3 {
			t.Errorf("evidence: %+v", attempts)
		}
		if n := readOne[int](t, s.DB(), "SELECT count(*) FROM effects"); n != 0 {
			t.Errorf("%d effects of the replaced runner", n)
		}
		stop()
		all := tenures(t, s)
		if len(all) != 3 || all[2].holder != s.name || all[2].taken < all[2].ttlThen {
			t.Errorf("tenures: %+v", all)
		}
	})
}

func TestTwoSchedulersOfOneProcessTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "app.db")
		a, b := openAt(t, path, Config{}), openAt(t, path, Config{})
		recordTenures(t, a)
		var mu sync.Mutex
		ran := make(map[int][]string)
		const kind Kind[int] = "turns"
		for _, s := range []*Scheduler{a, b} {
			Handle(s, kind, func(ctx context.Context, job *Job, n int) error {
				mu.Lock()
				defer mu.Unlock()
				ran[n] = append(ran[n], s.name)
				return nil
			}, Policy{})
		}
		n := 0
		work := func(by *Scheduler) {
			t.Helper()
			for _, s := range []*Scheduler{a, b} {
				for range 10 {
					if _, err := kind.Enqueue(t.Context(), s, n, EnqueueOptions{}); err != nil {
						t.Fatal(err)
					}
					n++
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for i := n - 20; i < n; i++ {
				if !slices.Equal(ran[i], []string{by.name}) {
					t.Errorf("job %d was run by %v, not once by %s", i, ran[i], by.name)
				}
			}
		}
		stopA := start(t, a)
		time.Sleep(time.Second)
		stopB := start(t, b)
		work(a)
		if _, err := b.RunDue(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("RunDue of a standby: %v", err)
		}
		stopA()
		work(b)
		if _, err := a.RunDue(t.Context()); !errors.Is(err, ErrLeaseHeld) {
			t.Errorf("RunDue beside a runner: %v", err)
		}
		stopA = start(t, a)
		time.Sleep(time.Minute)
		work(b)
		stopB()
		work(a)
		stopA()
		if all := tenures(t, a); len(all) != 3 {
			t.Errorf("tenures: %+v", all)
		}
		if lease := leaseOf(t, a); lease.Holder != "" || lease.Token != 3 {
			t.Errorf("after both have stopped: %+v", lease)
		}
	})
}

func TestRunIsAtWorkOnceInAScheduler(t *testing.T) {
	s := open(t, Config{})
	stop := start(t, s)
	waitFor(t, "it runs", func() bool { return leaseOf(t, s).Holder != "" })
	if err := s.Run(t.Context()); !errors.Is(err, ErrRunning) {
		t.Errorf("a second Run: %v", err)
	}
	if _, err := s.RunDue(t.Context()); !errors.Is(err, ErrRunning) {
		t.Errorf("RunDue beside it: %v", err)
	}
	stop()
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Errorf("RunDue after it: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ended); err != nil {
		t.Errorf("Run with a context that has ended: %v", err)
	}
}

func TestCloseEndsRunAsItsContextWould(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := openAt(t, path, Config{})
	begun, finish := make(chan struct{}), make(chan struct{})
	Handle(s, quick, func(ctx context.Context, job *Job, _ string) error {
		close(begun)
		<-finish
		return ctx.Err()
	}, Policy{})
	answer, err := quick.Enqueue(t.Context(), s, "", EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ran, closed := make(chan error, 1), make(chan error, 1)
	go func() { ran <- s.Run(t.Context()) }()
	<-begun
	go func() { closed <- s.Close() }()
	waitFor(t, "it closes", func() bool { return s.closing.Err() != nil })
	if err := s.Run(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Run while it closes: %v", err)
	}
	select {
	case err := <-closed:
		t.Errorf("Close did not wait for the handler: %v", err)
	case err := <-ran:
		t.Errorf("Run did not wait for the handler: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(finish) // within the grace
	if err := <-ran; err != nil {
		t.Errorf("run: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	again := openAt(t, path, Config{})
	if now := state(t, again, answer.ID); now != Succeeded {
		t.Errorf("the job is %s", now)
	}
	if lease := leaseOf(t, again); lease.Holder != "" {
		t.Errorf("the lease was not given back: %+v", lease)
	}
}

func TestRunAndCloseMayMeetAtAnyMoment(t *testing.T) {
	for i := range 40 {
		s, err := Open(memory, Config{PollInterval: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		Handle(s, quick, func(ctx context.Context, job *Job, _ string) error { return nil }, Policy{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := s.Run(t.Context()); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrRunning) {
					t.Errorf("run: %v", err)
				}
			})
		}
		wg.Go(func() {
			if _, err := quick.Enqueue(t.Context(), s, "", EnqueueOptions{}); err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("enqueue: %v", err)
			}
		})
		wg.Go(func() {
			<-time.After(time.Duration(i) * 100 * time.Microsecond)
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		wg.Wait()
	}
}
