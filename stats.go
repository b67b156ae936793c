package rota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Stats is the state of the whole at one instant, for dashboards and alerts.
type Stats struct {
	At     time.Time
	States map[State]int // number of jobs; the sum is all of them

	Overdue       int           // pending jobs whose RunAt has passed, those that may not run included
	OldestOverdue time.Duration // how long the oldest of them has been due

	Exhausted   int            // dead because their attempts are used up
	Held        int            // wait for a person's decision
	Unclaimable map[string]int // pending jobs by kinds without a handler in this process
	Paused      []string       // kinds that a person has paused; "*" is all
	Hung        int            // handlers of this process that ignore their ended context

	Lease    Lease         // Holder is empty when nobody runs
	LeaseAge time.Duration // since its last renewal

	Attempts []AttemptCount // by outcome and class, closed ones only

	// RetriedJobs ended after more than one counted attempt; RetrySuccess of
	// them, 0 to 1, ended in success.
	RetriedJobs  int
	RetrySuccess float64

	// ToSuccess is the time from enqueue (or RunAt, if that was later) to
	// success, over the succeeded jobs that are kept.
	ToSuccess Spread
}

// AttemptCount is how many closed attempts came to the outcome, by cause.
type AttemptCount struct {
	Outcome Outcome
	Class   string
	Count   int
}

// Spread describes a set of durations.
type Spread struct {
	Count     int
	Mean, Max time.Duration
}

const (
	sqlCountStates = `SELECT state, count(*) FROM rota_jobs GROUP BY state`

	sqlCountPending = `
		SELECT kind, count(*), count(CASE WHEN run_at <= $1 THEN 1 END), min(run_at)
		FROM rota_jobs WHERE state = 'pending' GROUP BY kind`

	sqlCountExhausted = `SELECT count(*) FROM rota_jobs WHERE state = 'dead' AND reason = 'exhausted'`

	sqlCountAttempts = `
		SELECT outcome, coalesce(class, ''), count(*) FROM rota_attempts
		WHERE outcome IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2`

	sqlCountRetried = `
		SELECT count(*), count(CASE WHEN state = 'succeeded' THEN 1 END)
		FROM rota_jobs WHERE spent > 1 AND state IN ('succeeded', 'dead')`

	sqlToSuccess = `
		SELECT count(*), coalesce(avg(wait), 0), coalesce(max(wait), 0) FROM (
			SELECT finished_at - CASE WHEN scheduled_for > created_at THEN scheduled_for ELSE created_at END AS wait
			FROM rota_jobs WHERE state = 'succeeded') AS waits`
)

// Stats counts. It reads every job and attempt that is kept, in one read
// transaction: some hundred milliseconds for a million of them, during which
// others write.
func (s *Scheduler) Stats(ctx context.Context) (Stats, error) {
	st := Stats{
		At: time.Now(), States: make(map[State]int), Unclaimable: make(map[string]int),
		Hung: int(s.hung.Load()),
	}
	conn, err := s.store.DB().Conn(ctx)
	if err != nil {
		return Stats{}, fmt.Errorf("rota: stats: %w", s.orClosed(err))
	}
	defer conn.Close()
	// Not database/sql's own transaction, which this pool begins as a writing
	// one.
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return Stats{}, fmt.Errorf("rota: stats: %w", s.orClosed(err))
	}
	err = st.read(ctx, conn, s.kinds())
	_, end := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	if err = errors.Join(err, end); err != nil {
		return Stats{}, fmt.Errorf("rota: stats: %w", s.orClosed(err))
	}
	return st, nil
}

func (st *Stats) read(ctx context.Context, tx Tx, handled []string) (err error) {
	if err := eachRow(ctx, tx, sqlCountStates, nil, func(scan func(...any) error) error {
		var state State
		var n int
		err := scan(&state, &n)
		st.States[state] = n
		return err
	}); err != nil {
		return err
	}
	st.Held = st.States[Held]
	if err := eachRow(ctx, tx, sqlCountPending, []any{micros(st.At)}, func(scan func(...any) error) error {
		var kind string
		var n, overdue int
		var oldest int64
		err := scan(&kind, &n, &overdue, &oldest)
		st.Overdue += overdue
		if age := st.At.Sub(fromMicros(oldest)); overdue > 0 && age > st.OldestOverdue {
			st.OldestOverdue = age
		}
		if !slices.Contains(handled, kind) {
			st.Unclaimable[kind] = n
		}
		return err
	}); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, sqlCountExhausted).Scan(&st.Exhausted); err != nil {
		return err
	}
	if st.Paused, err = texts(ctx, tx, sqlPauses); err != nil {
		return err
	}
	if st.Lease, err = readLease(ctx, tx); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if st.Lease.Holder != "" {
		st.LeaseAge = st.At.Sub(st.Lease.RenewedAt)
	}
	if err := eachRow(ctx, tx, sqlCountAttempts, nil, func(scan func(...any) error) error {
		var c AttemptCount
		err := scan(&c.Outcome, &c.Class, &c.Count)
		st.Attempts = append(st.Attempts, c)
		return err
	}); err != nil {
		return err
	}
	var succeeded int
	if err := tx.QueryRowContext(ctx, sqlCountRetried).Scan(&st.RetriedJobs, &succeeded); err != nil {
		return err
	}
	if st.RetriedJobs > 0 {
		st.RetrySuccess = float64(succeeded) / float64(st.RetriedJobs)
	}
	var mean float64
	var longest int64
	err = tx.QueryRowContext(ctx, sqlToSuccess).Scan(&st.ToSuccess.Count, &mean, &longest)
	st.ToSuccess.Mean = time.Duration(mean * float64(time.Microsecond))
	st.ToSuccess.Max = time.Duration(longest) * time.Microsecond
	return err
}

// eachRow calls f for each row of the query.
func eachRow(ctx context.Context, tx Tx, query string, args []any, f func(scan func(...any) error) error) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
