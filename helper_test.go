package rota

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// testLog collects what the scheduler logs; a test shows it when it fails.
type testLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// open opens a scheduler on a new temporary file. When the test ends, every
// invariant is checked and the scheduler closed.
func open(t testing.TB, cfg Config) *Scheduler {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "rota.db"), cfg)
}

func openAt(t testing.TB, path string, cfg Config) *Scheduler {
	t.Helper()
	log := new(testLog)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	s, err := Open(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
		if s.closing.Err() == nil {
			checkInvariants(t, s)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// invariants are sentences about the tables that always hold; each query finds
// the rows that break its sentence.
var invariants = []struct{ sentence, breaks string }{
	{"a pending job has no end, an ended one has", `
		SELECT id FROM rota_jobs WHERE (state IN ('succeeded', 'dead', 'cancelled')) <> (finished_at IS NOT NULL)`},
	{"a running job has a token and a start", `
		SELECT id FROM rota_jobs WHERE state = 'running' AND (token IS NULL OR started_at IS NULL)`},
	{"a running job has exactly one open attempt, every other none", `
		SELECT id FROM rota_jobs j WHERE (state = 'running') <>
			(SELECT count(*) FROM rota_attempts a WHERE a.job_id = j.id AND outcome IS NULL)`},
	{"attempts are 1..n without a gap, and the job knows n", `
		SELECT id FROM rota_jobs j WHERE attempt <> (SELECT count(*) FROM rota_attempts WHERE job_id = j.id)
			OR attempt <> coalesce((SELECT max(number) FROM rota_attempts WHERE job_id = j.id), 0)`},
	{"a closed attempt has an end that is not before its start, a class, a decision and a reason", `
		SELECT job_id FROM rota_attempts WHERE outcome IS NOT NULL AND
			(finished_at IS NULL OR finished_at < claimed_at OR class IS NULL OR decision IS NULL OR reason IS NULL)`},
	{"next_at is set if and only if it is tried again", `
		SELECT job_id FROM rota_attempts WHERE outcome IS NOT NULL AND (decision = 'pending') <> (next_at IS NOT NULL)`},
	{"the delay lies in the recorded range", `
		SELECT job_id FROM rota_attempts WHERE next_at IS NOT NULL AND bound IS NOT NULL AND
			NOT (next_at - finished_at BETWEEN delay_min - 1 AND delay_max + 1)`},
	{"counted attempts do not exceed the bound that was recorded", `
		SELECT id FROM rota_jobs j WHERE spent > (SELECT max(bound) FROM rota_attempts WHERE job_id = j.id AND class <> 'process_died')`},
	{"a succeeded job's last attempt succeeded, or a person resolved it", `
		SELECT id FROM rota_jobs j WHERE state = 'succeeded' AND reason <> 'resolved' AND
			(SELECT outcome FROM rota_attempts WHERE job_id = j.id ORDER BY number DESC LIMIT 1) IS NOT 'succeeded'`},
	{"a dead, held or cancelled job says why", `
		SELECT id FROM rota_jobs WHERE state IN ('dead', 'held', 'cancelled') AND reason IS NULL`},
	{"no token is above the lease's", `
		SELECT job_id FROM rota_attempts WHERE token > (SELECT token FROM rota_leases)`},
	{"a group has at most one job at its front, and one if it has any", `
		SELECT group_key FROM rota_jobs WHERE group_key IS NOT NULL AND state IN ('pending', 'running')
			GROUP BY kind, group_key HAVING sum(in_line = 0) <> 1`},
	{"a unique key has at most one live job", `
		SELECT unique_key FROM rota_jobs WHERE unique_key IS NOT NULL AND state IN ('pending', 'paused', 'running', 'held')
			GROUP BY kind, unique_key HAVING count(*) > 1`},
	{"a schedule's spec stands on one row, which waits", `
		SELECT schedule FROM rota_jobs WHERE spec IS NOT NULL GROUP BY schedule
			HAVING count(*) <> 1 OR sum(state IN ('pending', 'paused')) <> 1`},
	{"a replay carries its original's arguments", `
		SELECT r.id FROM rota_jobs r JOIN rota_jobs o ON o.id = r.replay_of WHERE o.args <> r.args OR o.kind <> r.kind`},
}

func checkInvariants(t testing.TB, s *Scheduler) {
	t.Helper()
	ctx := context.Background()
	for _, inv := range invariants {
		broken, err := texts(ctx, s.DB(), inv.breaks)
		if err != nil {
			t.Errorf("invariant %q: %v", inv.sentence, err)
		}
		if len(broken) > 0 {
			t.Errorf("invariant broken: %s: %q", inv.sentence, broken[:min(len(broken), 5)])
		}
	}
	var ok string
	if err := s.DB().QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&ok); err != nil || ok != "ok" {
		t.Errorf("integrity_check: %s, %v", ok, err)
	}
}

// start runs s in a goroutine and returns a function that ends it and waits,
// which the test's end calls at the latest.
func start(t testing.TB, s *Scheduler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// waitFor waits until ok holds; the limit is a safety net, not an expectation.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// state is the job's state now.
func state(t testing.TB, s *Scheduler, id string) State {
	t.Helper()
	job, err := s.Job(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job.State
}
