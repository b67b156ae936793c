package rota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// holdWriteLock makes another program, as far as SQLite can tell, hold the
// database's write lock until release.
func holdWriteLock(t *testing.T, s *Scheduler) (release func()) {
	t.Helper()
	return holdLock(t, fileOf(t, s))
}

func holdLock(t *testing.T, path string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite", fileURI(path))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(context.Background(), "PRAGMA busy_timeout = 20000; BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		conn.Close()
		db.Close()
	})
	t.Cleanup(release)
	return release
}

// fileOf is the path of the scheduler's database.
func fileOf(t testing.TB, s *Scheduler) string {
	t.Helper()
	return readOne[string](t, s.DB(), "SELECT file FROM pragma_database_list WHERE name = 'main'")
}

// countingStore is a Store that counts its transactions.
type countingStore struct {
	Store
	updates atomic.Int64
}

func (c *countingStore) Update(ctx context.Context, f func(context.Context, Tx) error) error {
	c.updates.Add(1)
	return c.Store.Update(ctx, f)
}

// openCounting opens a scheduler on a new file whose transactions are counted.
func openCounting(t *testing.T) (*Scheduler, *countingStore) {
	t.Helper()
	s := open(t, Config{})
	second, err := openSQLite(t.Context(), fileOf(t, s), DurabilityFull)
	if err != nil {
		t.Fatal(err)
	}
	store := &countingStore{Store: second}
	counted, err := New(store, Config{Logger: s.log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := counted.Close(); err != nil {
			t.Error(err)
		}
	})
	return counted, store
}

func TestCallersShareCommits(t *testing.T) {
	s, store := openCounting(t)
	const kind Kind[int] = "shared"
	const callers, each = 64, 20
	before := store.updates.Load()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range each {
				if _, err := kind.Enqueue(t.Context(), s, i, EnqueueOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	commits := store.updates.Load() - before
	t.Logf("%d enqueues from %d callers in %d commits", callers*each, callers, commits)
	if commits > callers*each/4 {
		t.Errorf("%d commits for %d enqueues from %d callers: they hardly share any", commits, callers*each, callers)
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != callers*each {
		t.Errorf("%d jobs, want %d", n, callers*each)
	}
}

func TestALoneCallerIsCommittedAtOnce(t *testing.T) {
	s, store := openCounting(t)
	for i := range 5 {
		before := store.updates.Load()
		if _, err := Kind[int]("alone").Enqueue(t.Context(), s, i, EnqueueOptions{}); err != nil {
			t.Fatal(err)
		}
		if n := store.updates.Load() - before; n != 1 {
			t.Errorf("one enqueue took %d commits", n)
		}
	}
}

// insertNote is a write that leaves a trace, and then fails with err.
func insertNote(n int, err error) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		if _, failed := tx.ExecContext(ctx, "INSERT INTO notes VALUES ($1)", n); failed != nil {
			return failed
		}
		return err
	}
}

func TestAMemberThatFailsIsUndoneAloneAndItsNeighboursAreCommitted(t *testing.T) {
	s, store := openCounting(t)
	if _, err := s.DB().Exec("CREATE TABLE notes (n INTEGER UNIQUE CHECK (n <> 99))"); err != nil {
		t.Fatal(err)
	}
	own := errors.New("its own trouble")
	for round, members := range [][]struct {
		apply func(context.Context, Tx) error
		token int64
		want  error // nil: it succeeds; errAny: any error
	}{
		{{insertNote(1, nil), 0, nil}, {insertNote(2, own), 0, own}, {insertNote(3, nil), 0, nil}},
		{{insertNote(11, own), 0, own}, {insertNote(12, own), 0, own}},
		{{insertNote(21, nil), 0, nil}, {insertNote(99, nil), 0, errAny}, {insertNote(21, nil), 0, errAny}, {insertNote(22, nil), 0, nil}},
		{{insertNote(31, nil), 0, nil}, {insertNote(32, nil), 7, ErrLeaseLost}, {insertNote(33, own), 7, ErrLeaseLost}, {insertNote(34, nil), 0, nil}},
		{{insertNote(41, own), 0, own}, {insertNote(42, nil), 7, ErrLeaseLost}, {insertNote(43, nil), 0, nil}},
		{{insertNote(61, nil), 0, nil}, {func(ctx context.Context, tx Tx) error {
			_, err := tx.ExecContext(ctx, "this is no SQL")
			return err
		}, 0, errAny}, {insertNote(62, nil), 0, nil}},
	} {
		release := holdWriteLock(t, s) // so that all are of one batch
		before := store.updates.Load()
		var writes []*write
		for _, m := range members {
			writes = append(writes, s.writer.add(&write{apply: m.apply, token: m.token}))
		}
		gone := s.writer.add(&write{apply: insertNote(1000+round, own)}) // one that left before
		gone.state.Store(writeWithdrawn)
		release()
		for i, wr := range writes {
			err := s.writer.wait(t.Context(), wr)
			want := members[i].want
			if want == nil && err != nil || want == errAny && err == nil || want != nil && want != errAny && !errors.Is(err, want) {
				t.Errorf("batch %d, member %d: %v, want %v", round, i, err, want)
			}
		}
		if n := store.updates.Load() - before; n > 4 { // some may have found it busy
			t.Errorf("batch %d took %d transactions", round, n)
		}
	}
	rows, err := texts(t.Context(), s.DB(), "SELECT n FROM notes ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"1", "3", "21", "22", "31", "34", "43", "61", "62"}; !slices.Equal(rows, want) {
		t.Errorf("committed: %v\nwant: %v", rows, want)
	}
}

var errAny = errors.New("any error")

func TestOneCallersBadInputNeverFailsItsNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{})
		withInvoices(t, s, 1)
		release := holdWriteLock(t, s)
		const kind Kind[int] = "neighbour"
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				var err error
				switch i % 6 {
				case 0:
					_, err = sweepKind.Sweep(t.Context(), s, "SELECT nothing FROM nowhere")
				case 1:
					_, err = sweepKind.Sweep(t.Context(), s, "SELECT 'k', 'no JSON'")
				case 2:
					err = s.Cancel(t.Context(), "no such job", By{})
				case 3:
					_, err = s.Replay(t.Context(), "no such job", ReplayOptions{})
				default:
					if _, err := kind.Enqueue(t.Context(), s, i, EnqueueOptions{UniqueKey: fmt.Sprint(i)}); err != nil {
						t.Errorf("a neighbour's enqueue: %v", err)
					}
					return
				}
				if err == nil {
					t.Errorf("bad input %d was taken", i%6)
				}
			})
		}
		time.Sleep(2 * busyWait) // all have come by now
		release()
		wg.Wait()
		if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 20 {
			t.Errorf("%d jobs, want 20", n)
		}
	})
}

func TestAContextThatEndsWhileItWaitsLeavesTheJobWhollyThereOrWhollyAbsent(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[int] = "cancelled"
	total, callers := 10_000, 50
	if raceEnabled {
		total = 1500
	}
	var mu sync.Mutex
	answered, uncertain, absent := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range total / callers {
				key := fmt.Sprint(c, "/", i)
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond))
				answer, err := kind.Enqueue(ctx, s, i, EnqueueOptions{UniqueKey: key, Group: fmt.Sprint(c)})
				cancel()
				mu.Lock()
				switch {
				case err == nil && !answer.Duplicate:
					answered[key] = true
				case errors.Is(err, ErrUncertain) && errors.Is(err, context.DeadlineExceeded):
					uncertain[key] = true
				case errors.Is(err, context.DeadlineExceeded):
					absent[key] = true
				default:
					t.Errorf("%s: %+v, %v", key, answer, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// The last of the uncertain ones are committed before this.
	if _, err := kind.Enqueue(t.Context(), s, 0, EnqueueOptions{UniqueKey: "after"}); err != nil {
		t.Fatalf("an enqueue afterwards: %v", err)
	}
	keys, err := texts(t.Context(), s.DB(), "SELECT unique_key FROM rota_jobs WHERE unique_key <> 'after'")
	if err != nil {
		t.Fatal(err)
	}
	there := 0
	for _, key := range keys {
		switch {
		case absent[key]:
			t.Errorf("%s: nothing was written, they said, and it is there", key)
		case answered[key]:
			delete(answered, key)
		case uncertain[key]:
			there++
		}
	}
	if len(answered) > 0 {
		t.Errorf("%d jobs were answered and are not there", len(answered))
	}
	t.Logf("%d rows of %d: %d of %d uncertain ones are there, %d were withdrawn", len(keys), total, there, len(uncertain), len(absent))
	if len(keys) == 0 || len(absent)+len(uncertain) == 0 {
		t.Errorf("no such race took place: %d rows, %d withdrawn, %d uncertain", len(keys), len(absent), len(uncertain))
	}
	if ok := readOne[string](t, s.DB(), "PRAGMA integrity_check"); ok != "ok" {
		t.Error(ok)
	}
}

// The writer may be at work on what a caller has left behind; the race detector
// sees if they still share anything.
func TestACallerWhoLeavesSharesNothingWithTheWriter(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[int] = "left"
	withInvoices(t, s, 20)
	dead, err := kind.Enqueue(t.Context(), s, 1, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Cancel(t.Context(), dead.ID, By{}); err != nil {
		t.Fatal(err)
	}
	if err := kind.Schedule(t.Context(), s, Schedule{Name: "hourly", Spec: "@hourly", Overlap: OverlapAllow}, 1); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"EnqueueMany": func(ctx context.Context) error {
			answers, err := kind.EnqueueMany(ctx, s, make([]Entry[int], 20)...)
			return errors.Join(err, zeroUnless(err == nil, answers != nil))
		},
		"Sweep": func(ctx context.Context) error {
			n, err := sweepKind.Sweep(ctx, s, unsent)
			return errors.Join(err, zeroUnless(err == nil, n != 0))
		},
		"Replay": func(ctx context.Context) error {
			answer, err := s.Replay(ctx, dead.ID, ReplayOptions{})
			return errors.Join(err, zeroUnless(err == nil, answer != Enqueued{}))
		},
		"RunNow": func(ctx context.Context) error {
			answer, err := s.RunNow(ctx, "hourly", By{})
			return errors.Join(err, zeroUnless(err == nil, answer != Enqueued{}))
		},
		"Prune": func(ctx context.Context) error {
			_, err := s.Prune(ctx, Succeeded, 0)
			return err
		},
		"RunDue": func(ctx context.Context) error {
			_, err := s.RunDue(ctx)
			return err
		},
	}
	var wg sync.WaitGroup
	for name, call := range calls {
		wg.Go(func() {
			for range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(5*time.Millisecond))
				err := call(ctx)
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
}

// zeroUnless is an error if a call that failed gave a value all the same.
func zeroUnless(ok, value bool) error {
	if !ok && value {
		return errors.New("it failed and gave an answer")
	}
	return nil
}

func TestCallersOutlastALockThatAnotherProgramHoldsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{})
		const kind Kind[int] = "patient"
		release := holdWriteLock(t, s)
		began := time.Now()
		patient := make(chan error, 10)
		for i := range cap(patient) {
			go func() {
				_, err := kind.Enqueue(t.Context(), s, i, EnqueueOptions{UniqueKey: fmt.Sprint("patient", i)})
				patient <- err
			}()
		}
		for _, deadline := range []time.Duration{time.Millisecond, 200 * time.Millisecond, 3*busyWait + time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			began := time.Now()
			_, err := kind.Enqueue(ctx, s, 0, EnqueueOptions{UniqueKey: "hurried"})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUncertain) {
				t.Errorf("a caller with a deadline of %v: %v", deadline, err)
			}
			if took := time.Since(began); took != deadline {
				t.Errorf("a caller with a deadline of %v came back after %v", deadline, took)
			}
		}
		time.Sleep(time.Minute)
		select {
		case err := <-patient:
			t.Errorf("a caller without a deadline came back while the lock was held: %v", err)
		default:
		}
		release()
		for range cap(patient) {
			if err := <-patient; err != nil {
				t.Errorf("a caller without a deadline: %v", err)
			}
		}
		t.Logf("they waited %v", time.Since(began))
		if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs WHERE unique_key LIKE 'patient%'"); n != cap(patient) {
			t.Errorf("%d jobs of %d patient callers", n, cap(patient))
		}
		if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs WHERE unique_key = 'hurried'"); n != 0 {
			t.Error("the job of a caller who had left is there")
		}
	})
}

func TestInMemoryCallersOutlastAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, memory, Config{})
		const kind Kind[int] = "patient"
		if _, err := kind.EnqueueMany(t.Context(), s, make([]Entry[int], 500)...); err != nil {
			t.Fatal(err)
		}
		rows, err := s.DB().Query("SELECT id FROM rota_jobs")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		rows.Next()
		done := make(chan error, 1)
		go func() {
			_, err := kind.Enqueue(t.Context(), s, 1, EnqueueOptions{})
			done <- err
		}()
		time.Sleep(10 * busyWait)
		select {
		case err := <-done:
			t.Errorf("it did not wait for the reader: %v", err)
			return
		default:
		}
		rows.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestCloseCommitsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{})
		path := fileOf(t, s)
		release := holdWriteLock(t, s)
		const kind Kind[int] = "last"
		answers := make(chan error, 50)
		for i := range cap(answers) {
			go func() {
				_, err := kind.Enqueue(t.Context(), s, i, EnqueueOptions{})
				answers <- err
			}()
		}
		time.Sleep(busyWait / 2)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		time.Sleep(busyWait / 4)
		release()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		for range cap(answers) {
			if err := <-answers; err != nil {
				t.Errorf("a caller who waited: %v", err)
			}
		}
		again := openAt(t, path, Config{})
		if n := readOne[int](t, again.DB(), "SELECT count(*) FROM rota_jobs"); n != cap(answers) {
			t.Errorf("%d jobs, want %d", n, cap(answers))
		}
	})
}

func TestCloseDoesNotWaitForALockThatIsNeverGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{})
		path := fileOf(t, s)
		release := holdWriteLock(t, s)
		answers := make(chan error, 20)
		for i := range cap(answers) {
			go func() {
				_, err := Kind[int]("last").Enqueue(t.Context(), s, i, EnqueueOptions{})
				answers <- err
			}()
		}
		time.Sleep(busyWait / 2)
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 3*busyWait {
			t.Errorf("it took %v", took)
		}
		for range cap(answers) {
			if err := <-answers; !errors.Is(err, ErrClosed) {
				t.Errorf("a caller who waited: %v; it must match ErrClosed", err)
			}
		}
		release()
		again := openAt(t, path, Config{})
		if n := readOne[int](t, again.DB(), "SELECT count(*) FROM rota_jobs"); n != 0 {
			t.Errorf("%d jobs of callers who were refused are there", n)
		}
	})
}

func TestAfterCloseEveryCallSaysSo(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[int] = "late"
	Handle(s, kind, func(context.Context, *Job, int) error { return nil }, Policy{})
	answer, err := kind.Enqueue(t.Context(), s, 1, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.ID
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Enqueue":     func() error { _, err := kind.Enqueue(ctx, s, 1, EnqueueOptions{}); return err },
		"EnqueueMany": func() error { _, err := kind.EnqueueMany(ctx, s, Entry[int]{}); return err },
		"Sweep":       func() error { _, err := kind.Sweep(ctx, s, "SELECT 1, '{}'"); return err },
		"Schedule":    func() error { return kind.Schedule(ctx, s, Schedule{Name: "n", Spec: "@daily"}, 1) },
		"Run":         func() error { return s.Run(ctx) },
		"RunDue":      func() error { _, err := s.RunDue(ctx); return err },
		"Cancel":      func() error { return s.Cancel(ctx, id, By{}) },
		"Resolve":     func() error { return s.Resolve(ctx, id, Dead, By{}) },
		"Replay":      func() error { _, err := s.Replay(ctx, id, ReplayOptions{}); return err },
		"Pause":       func() error { return s.Pause(ctx, "late", By{}) },
		"Resume":      func() error { return s.Resume(ctx, "late", By{}) },
		"Prune":       func() error { _, err := s.Prune(ctx, Dead, 0); return err },
		"Job":         func() error { _, err := s.Job(ctx, id); return err },
		"Attempts":    func() error { _, err := s.Attempts(ctx, id); return err },
		"Actions":     func() error { _, err := s.Actions(ctx, ""); return err },
		"Stats":       func() error { _, err := s.Stats(ctx); return err },
		"Backup":      func() error { return s.Backup(ctx, t.TempDir()+"/backup.db") },
		"Jobs": func() error {
			for _, err := range s.Jobs(ctx, Filter{}) {
				return err
			}
			return nil
		},
	} {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v; it must match ErrClosed", name, err)
		}
	}
}

func TestTenClosesAtOnceAllWaitAndAgree(t *testing.T) {
	s := open(t, Config{Grace: -1})
	const kind Kind[int] = "any"
	begun := make(chan struct{})
	var ended atomic.Bool
	Handle(s, kind, func(ctx context.Context, job *Job, n int) error {
		close(begun)
		<-ctx.Done()
		ended.Store(true)
		return ctx.Err()
	}, Policy{})
	if _, err := kind.Enqueue(t.Context(), s, 1, EnqueueOptions{}); err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- s.Run(t.Context()) }()
	<-begun
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if !ended.Load() {
				t.Error("Close returned before the handler had")
			}
		})
	}
	wg.Wait()
	if err := <-ran; err != nil {
		t.Errorf("run: %v", err)
	}
}
