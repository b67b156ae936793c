package rota

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// The lease says who is the runner. It is a row with a token that grows by one
// at every change of holder and never repeats; every write of the runner checks
// that the token is still its own, in the same transaction, so a runner that
// was paused, cut off or replaced can't write any more.
//
// A holder also keeps a file lock, which the system takes away when the process
// ends, so that a crash is seen at once. A lock that is free tells of a death
// faster; a lock that is held proves nothing: a paused process holds it too, so
// a lease that is not renewed for a whole TTL is taken over all the same. That
// time is measured on the watcher's own monotonic clock, from when it first saw
// the renewal that it saw last. No two clocks are ever compared.

const (
	leaseName = "runner"

	sqlLeaseToken = `SELECT token FROM rota_leases WHERE name = 'runner'`

	sqlReadLease = `SELECT holder, token, ttl, locked, acquired_at, renewed_at
		FROM rota_leases WHERE name = $1`

	sqlTakeLease = `
		INSERT INTO rota_leases (name, holder, token, ttl, locked, acquired_at, renewed_at, expires_at)
		VALUES ($1, $2, 1, $3, $4, $5, $5, $6)
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = rota_leases.token + 1,
			ttl = excluded.ttl, locked = excluded.locked, acquired_at = excluded.acquired_at,
			renewed_at = excluded.renewed_at, expires_at = excluded.expires_at`

	sqlRenewLease = `UPDATE rota_leases SET renewed_at = $2, expires_at = $3, locked = $4
		WHERE name = $1`

	sqlReleaseLease = `UPDATE rota_leases SET holder = '', locked = 0, expires_at = $2 WHERE name = $1`
)

// fileLock is the lock file beside a database. It stays when the lock is given
// back: removing it would let two processes lock two files of one name. Without
// a path it is a lock within the process, for a database in memory.
type fileLock struct {
	path string
	mu   sync.Mutex // guards all below
	held bool
	file *os.File // while held
}

func (l *fileLock) tryLock() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return false, nil
	}
	if l.path == "" {
		l.held = true
		return true, nil
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, fmt.Errorf("lock file: %w", err)
	}
	ok, err := flock(f)
	if !ok {
		return false, errors.Join(err, f.Close())
	}
	l.held, l.file = true, f
	return true, nil
}

func (l *fileLock) unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	if l.file == nil {
		return nil
	}
	err := errors.Join(funlock(l.file), l.file.Close())
	l.file = nil
	return err
}

// Lease is what the database says about the runner.
type Lease struct {
	Holder     string // host, process and instance; "" when nobody runs
	Token      int64
	AcquiredAt time.Time
	RenewedAt  time.Time
	TTL        time.Duration

	locked bool
}

func readLease(ctx context.Context, tx Tx) (Lease, error) {
	var l Lease
	var ttl, acquired, renewed int64
	err := tx.QueryRowContext(ctx, sqlReadLease, leaseName).Scan(&l.Holder, &l.Token, &ttl, &l.locked, &acquired, &renewed)
	if errors.Is(err, sql.ErrNoRows) {
		return Lease{}, nil
	}
	l.TTL = time.Duration(ttl) * time.Microsecond
	l.AcquiredAt, l.RenewedAt = fromMicros(acquired), fromMicros(renewed)
	return l, err
}

// sameAs tells whether nothing has been renewed or taken since l was read.
func (l Lease) sameAs(other Lease) bool {
	return l.Token == other.Token && l.RenewedAt.Equal(other.RenewedAt) && l.Holder == other.Holder
}

// contest is one scheduler's effort to get and keep the lease. It is used by one
// goroutine at a time.
type contest struct {
	s       *Scheduler
	locked  bool      // the Store's lock is ours
	seen    Lease     // the lease as it was read last
	seenAt  time.Time // when it was first seen like that; monotonic
	nextTry time.Time
}

// compete waits until the lease is this runner's, and returns its token. It
// returns an error only when ctx is done.
func (c *contest) compete(ctx context.Context) (int64, error) {
	pause := c.s.cfg.PollInterval
	if pause <= 0 {
		pause = c.s.cfg.LeaseTTL / 3
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-timer.C:
		}
		token, err := c.try(ctx)
		if token != 0 {
			return token, nil
		}
		if err != nil && ctx.Err() == nil {
			c.s.log.WarnContext(ctx, "rota: can't compete for the lease", "error", c.s.safe(err))
			timer.Reset(c.s.cfg.LeaseTTL / 3)
			continue
		}
		timer.Reset(pause)
	}
}

// try asks the lock, which is cheap, each time, and the database when the lock
// is free or a third of the TTL has passed.
func (c *contest) try(ctx context.Context) (token int64, err error) {
	if err := c.lock(); err != nil {
		return 0, err
	}
	if !c.locked && time.Now().Before(c.nextTry) {
		return 0, nil
	}
	c.nextTry = time.Now().Add(c.s.cfg.LeaseTTL / 3)
	token, err = c.take(ctx)
	if token == 0 {
		// A holder may live without the lock; let it have the lock.
		err = errors.Join(err, c.unlock())
	}
	return token, err
}

func (c *contest) lock() (err error) {
	if !c.locked {
		c.locked, err = c.s.store.TryLock()
	}
	return err
}

func (c *contest) unlock() error {
	if !c.locked {
		return nil
	}
	c.locked = false
	return c.s.store.Unlock()
}

// take is the compare-and-set. A token of 0 says that the lease is another's.
func (c *contest) take(ctx context.Context) (int64, error) {
	locked, seen, seenAt := c.locked, c.seen, c.seenAt
	var found Lease
	var token int64
	err := c.s.writer.do(ctx, func(ctx context.Context, tx Tx) (err error) {
		token = 0
		if found, err = readLease(ctx, tx); err != nil {
			return err
		}
		// With the lock in hand: nobody runs, or the runner has died. Without it, a
		// lease that is free is left to who has the lock and is about to take it,
		// so that the runner is the one whose death is seen at once.
		ours := locked && (found.Holder == "" || found.locked)
		expired := !seenAt.IsZero() && found.sameAs(seen) && time.Since(seenAt) >= cmp.Or(found.TTL, c.s.cfg.LeaseTTL)
		if !ours && !expired {
			return nil
		}
		now := time.Now()
		_, err = tx.ExecContext(ctx, sqlTakeLease, leaseName, c.s.name, c.s.cfg.LeaseTTL.Microseconds(),
			flag(locked), micros(now), micros(now.Add(c.s.cfg.LeaseTTL)))
		token = found.Token + 1
		return err
	})
	if err != nil {
		return 0, err
	}
	if c.seenAt.IsZero() || !found.sameAs(c.seen) {
		c.seen, c.seenAt = found, time.Now()
	}
	return token, nil
}

// renew prolongs the lease. It fails with ErrLeaseLost if it is another's.
func (c *contest) renew(ctx context.Context, token int64) error {
	// One who took over from a paused process gets the lock when that ends.
	if err := c.lock(); err != nil {
		return err
	}
	locked := c.locked
	return c.s.writer.doFenced(ctx, token, func(ctx context.Context, tx Tx) error {
		now := time.Now()
		_, err := tx.ExecContext(ctx, sqlRenewLease, leaseName, micros(now), micros(now.Add(c.s.cfg.LeaseTTL)), flag(locked))
		return err
	})
}

// release gives the lease back, so that a waiting process takes it at once.
func (c *contest) release(ctx context.Context, token int64) error {
	err := c.s.writer.doFenced(ctx, token, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, sqlReleaseLease, leaseName, micros(time.Now()))
		return err
	})
	if errors.Is(err, ErrLeaseLost) {
		err = nil // it is somebody's, which is as good
	}
	return errors.Join(err, c.unlock())
}
