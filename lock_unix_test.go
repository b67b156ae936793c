//go:build unix

package rota

import (
	"context"
	"path/filepath"
	"testing"
	"time"
)

// stopBetweenWrites freezes the child while it has no transaction open: one that
// is frozen within a commit keeps SQLite's write lock, and nobody can write.
func stopBetweenWrites(t *testing.T, c *child, s *Scheduler) {
	t.Helper()
	for range 50 {
		c.stop()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		tx, err := s.DB().BeginTx(ctx, nil)
		if err == nil {
			err = tx.Rollback()
		}
		cancel()
		if err == nil {
			return
		}
		c.cont()
	}
	t.Fatal("the child was never caught between two writes")
}

func TestAPausedRunnerIsReplacedByElapsedTimeAndCanWriteNothingAfterwards(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	const ttl = time.Second
	s := openAt(t, path, Config{LeaseTTL: ttl})
	recordTenures(t, s)
	ran := make(chan int, 10)
	Handle(s, blocking, func(ctx context.Context, job *Job, n int) error { ran <- n; return nil }, Policy{})
	c := startChild(t, "runner", path, ttl.String())
	waitFor(t, "the child is the runner", func() bool { return leaseOf(t, s).Holder != "" })
	answer, err := blocking.Enqueue(t.Context(), s, 1, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.expect("began")
	start(t, s)

	stopBetweenWrites(t, c, s)
	began := time.Now()
	<-ran
	t.Logf("another took over %v after the pause, with a TTL of %v", time.Since(began), ttl)
	waitFor(t, "the job has succeeded", func() bool { return state(t, s, answer.ID) == Succeeded })
	before, err := s.Attempts(t.Context(), answer.ID)
	if err != nil {
		t.Fatal(err)
	}

	c.cont()
	for _, way := range []string{"cause", "complete", "write"} {
		c.expect(way + ": " + ErrLeaseLost.Error())
	}
	// It waits for its turn now, as any other, and the new runner goes on.
	if _, err := blocking.Enqueue(t.Context(), s, 2, EnqueueOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := <-ran; n != 2 {
		t.Errorf("job %d was run", n)
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
	after, err := s.Attempts(t.Context(), answer.ID)
	if err != nil {
		t.Fatal(err)
	}
	job, err := s.Job(t.Context(), answer.ID)
	if err != nil || job.State != Succeeded || job.Error != "" {
		t.Errorf("the job: %+v, %v", job, err)
	}
	if len(before) != 2 || len(after) != 2 || before[0].Outcome != OutcomeUnknown || after[1].Outcome != OutcomeSucceeded ||
		after[0].FinishedAt != before[0].FinishedAt || after[0].Class != before[0].Class {
		t.Errorf("evidence before: %+v\nand after the paused runner went on: %+v", before, after)
	}
	all := tenures(t, s)
	if len(all) != 2 || all[1].holder != s.name || all[1].taken < ttl {
		t.Errorf("tenures: %+v; none may begin within a TTL of a sign of life", all)
	}
}

func TestOneWhoTookOverFromAPausedRunnerGetsTheLockWhenThatDies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := openAt(t, path, Config{LeaseTTL: time.Minute})
	const ttl = 1500 * time.Millisecond
	paused := startChild(t, "runner", path, "300ms")
	waitFor(t, "the first child is the runner", func() bool { return leaseOf(t, s).Token == 1 })
	second := startChild(t, "runner", path, ttl.String())
	stopBetweenWrites(t, paused, s)
	waitFor(t, "the second child is the runner, without the lock", func() bool {
		lease := leaseOf(t, s)
		return lease.Token == 2 && !lease.locked
	})
	paused.kill()
	waitFor(t, "the second child has the lock", func() bool { return leaseOf(t, s).locked })
	start(t, s)
	underOneSecond(t, "to take over when the second child dies", func() time.Duration {
		began := time.Now()
		second.kill()
		waitFor(t, "the third is the runner", func() bool { return leaseOf(t, s).Token == 3 })
		return time.Since(began)
	})
	if lease := leaseOf(t, s); lease.Holder != s.name || !lease.locked {
		t.Errorf("lease %+v", lease)
	}
}
