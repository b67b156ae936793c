//go:build unix

package rota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestGuarantee2AtMostOneRunnersWritesAreAccepted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openWithEffects(t, path)
	// Every claim, end and effect is logged in the order of the commits, with
	// the token that it was made with and the lease's. Those of orphans are
	// closed by another runner, and left out here.
	_, err := s.DB().Exec(`
		CREATE TABLE accepted (seq INTEGER PRIMARY KEY, what TEXT, token INTEGER, lease INTEGER);
		CREATE TRIGGER log_claim AFTER INSERT ON rota_attempts BEGIN
			INSERT INTO accepted (what, token, lease) VALUES ('claim', NEW.token, (SELECT token FROM rota_leases)); END;
		CREATE TRIGGER log_end AFTER UPDATE ON rota_attempts WHEN NEW.class NOT IN ('process_died', 'not_started') BEGIN
			INSERT INTO accepted (what, token, lease) VALUES ('end', NEW.token, (SELECT token FROM rota_leases)); END;
		CREATE TRIGGER log_effect AFTER INSERT ON effects BEGIN
			INSERT INTO accepted (what, token, lease) SELECT 'effect', token, (SELECT token FROM rota_leases) FROM rota_jobs WHERE id = NEW.id; END;
		CREATE TRIGGER log_lease AFTER UPDATE ON rota_leases WHEN NEW.token <> OLD.token BEGIN
			INSERT INTO accepted (what, token, lease) VALUES ('lease', NEW.token, OLD.token + 1); END`)
	if err != nil {
		t.Fatal(err)
	}
	var workers []*child
	for i := range 3 {
		workers = append(workers, startChild(t, "guarantee: work", path, fmt.Sprint("worker-", i)))
	}
	holder := func() string {
		lease, err := readLease(t.Context(), s.DB())
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(lease.Holder, ":")
		return name
	}
	takeovers := 0
	for round := 0; takeovers < fewer(4, 2); round++ {
		if round > 20 {
			t.Fatalf("%d takeovers in %d pauses", takeovers, round)
		}
		if _, err := Kind[struct{}]("effect").EnqueueMany(t.Context(), s, make([]Entry[struct{}], fewer(40, 20))...); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "somebody works", func() bool { return holder() != "" })
		for range rand.IntN(20) { // at any point of its work
			holder()
		}
		before := holder()
		for i, w := range workers {
			if before != fmt.Sprint("worker-", i) {
				continue
			}
			w.stop()
			// If it was stopped within a transaction, nobody can write, and
			// none takes over, until it goes on.
			patience := time.After(time.Second)
			tick := time.NewTicker(5 * time.Millisecond)
			for waiting := true; waiting; {
				select {
				case <-tick.C:
					if now := holder(); now != before && now != "" {
						takeovers++
						waiting = false
					}
				case <-patience:
					waiting = false
				}
			}
			tick.Stop()
			w.cont() // and it goes on as if nothing had been
		}
	}
	waitFor(t, "all is done", func() bool { return unfinished(t, s) == 0 })
	for _, w := range workers {
		if err := w.end(); err != nil {
			t.Errorf("a worker ended with %v", err)
		}
	}
	checkEffects(t, s)
	wrong, err := texts(t.Context(), s.DB(), `
		SELECT what || ' ' || seq || ' with token ' || token || ', the lease has ' || lease FROM accepted WHERE token IS NOT lease
		UNION ALL
		SELECT what || ' ' || seq || ' with token ' || token || ' after a greater one' FROM accepted a
		WHERE token < (SELECT max(token) FROM accepted b WHERE b.seq < a.seq)`)
	if err != nil || len(wrong) > 0 {
		t.Errorf("accepted: %q, %v", wrong, err)
	}
	var writes, tokens int
	if err := s.DB().QueryRow(`SELECT count(*), count(DISTINCT token) FROM accepted`).Scan(&writes, &tokens); err != nil || tokens < max(takeovers, 2) || writes < 100 {
		t.Errorf("%d writes with %d tokens, %v: the test shows too little", writes, tokens, err)
	}
}

func TestTheLockIsFreeAtOnceEvenWhileTheProgramStartsAChild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db.lock")
	mine, other := fileLock{path: path}, fileLock{path: path}
	for range 3 {
		if ok, err := mine.tryLock(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := other.tryLock(); ok || err != nil {
			t.Fatalf("two have the lock: %v, %v", ok, err)
		}
		// What a child has between fork and exec.
		copied, err := syscall.Dup(int(mine.file.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		err = mine.unlock()
		ok, lockErr := other.tryLock()
		if err = errors.Join(err, lockErr, other.unlock(), syscall.Close(copied)); !ok || err != nil {
			t.Errorf("the lock was not given back: %v, %v", ok, err)
		}
	}
}
