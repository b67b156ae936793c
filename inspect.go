package rota

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// What operators see and do, from any process that has the file open.

// Attempt is the evidence of one try of a job. Once closed it never changes.
type Attempt struct {
	JobID      string
	Kind       string
	Number     int    // 1, 2, 3, … without a gap
	Runner     string // who claimed it
	Token      int64  // the runner's fencing token
	ClaimedAt  time.Time
	StartedAt  time.Time // zero: the handler has provably not begun
	FinishedAt time.Time // zero: not closed yet
	Outcome    Outcome   // "": not closed yet
	Class      string    // cause of the outcome: "timeout", "http_503"
	Decision   State     // the state that the job went to
	Reason     string    // why, one word: "retry_after", "exhausted"
	Error      string    // safe text, at most 2 KiB
	NextAt     time.Time // zero: not tried again
	Bound      int       // attempts (or deaths) allowed, as the decision saw it; 0: no bound was asked
	DelayMin   time.Duration
	DelayMax   time.Duration   // the range that the delay to NextAt was drawn from
	Stack      string          // of a panic
	Note       json.RawMessage // JSON object of what the handler noted; nil: nothing
}

// By says who does something, and why. It is kept with the action.
type By struct {
	Actor  string // empty: "unknown"
	Reason string
}

// Action is something that a person did, as it stands on record.
type Action struct {
	At       time.Time
	Actor    string
	Action   string // "cancel", "replay", "resolve", "pause", …
	JobID    string
	Kind     string
	Schedule string
	Reason   string
	Detail   string // JSON, or empty
}

// allKinds stands for every kind in Pause and Resume.
const allKinds = "*"

const (
	sqlInsertAction = `
		INSERT INTO rota_actions (at, actor, action, job_id, kind, schedule, reason, detail)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`

	sqlActions = `
		SELECT at, actor, action, coalesce(job_id, ''), coalesce(kind, ''), coalesce(schedule, ''), reason, coalesce(detail, '')
		FROM rota_actions WHERE $1 = '' OR job_id = $1 ORDER BY seq`

	sqlJobByID = `SELECT ` + jobColumns + ` FROM rota_jobs WHERE id = $1`

	sqlAttempts = `
		SELECT number, runner, token, claimed_at, started_at, finished_at, coalesce(outcome, ''), coalesce(class, ''),
			coalesce(decision, ''), coalesce(reason, ''), coalesce(error, ''), next_at, coalesce(bound, 0),
			coalesce(delay_min, 0), coalesce(delay_max, 0), coalesce(stack, ''), note
		FROM rota_attempts WHERE job_id = $1 ORDER BY number`
)

// record keeps the action, in the transaction of what was done.
func (b By) record(ctx context.Context, tx Tx, action string, a Action) error {
	actor := b.Actor
	if actor == "" {
		actor = "unknown"
	}
	_, err := tx.ExecContext(ctx, sqlInsertAction, micros(time.Now()), safeText(actor, 200, nil), action,
		text(a.JobID), text(a.Kind), text(a.Schedule), safeText(b.Reason, maxErrorText, nil), text(a.Detail))
	return err
}

// Filter selects jobs; its fields must all hold, and zero ones hold for every
// job.
type Filter struct {
	State    State
	Kind     string
	Schedule string
	Group    string
	Label    [2]string // key and value
	After    string    // only jobs that were enqueued after the job with this id: the next page
	Limit    int       // at most this many; zero means no limit
}

const sqlSeqOf = `SELECT seq FROM rota_jobs WHERE id = $1`

// Jobs reads the jobs that the filter selects, in the order of their arrival,
// page by page, so that a reader who takes his time holds up nobody. What
// happens meanwhile may or may not be seen: what must be of one instant is in
// Stats.
func (s *Scheduler) Jobs(ctx context.Context, f Filter) iter.Seq2[*Job, error] {
	return func(yield func(*Job, error) bool) {
		const pageSize = 200
		var after int64
		if f.After != "" {
			err := s.store.DB().QueryRowContext(ctx, sqlSeqOf, f.After).Scan(&after)
			if err != nil {
				yield(nil, fmt.Errorf("rota: jobs after %s: %w", f.After, s.orClosed(oneRow(err))))
				return
			}
		}
		for left := f.Limit; ; {
			limit := pageSize
			if f.Limit > 0 {
				limit = min(limit, left)
			}
			query, args := f.query(after, limit)
			page, err := queryJobs(ctx, s.store.DB(), query, args...)
			if err != nil {
				yield(nil, fmt.Errorf("rota: jobs: %w", s.orClosed(err)))
				return
			}
			for _, job := range page {
				if !yield(job, nil) {
					return
				}
				after = job.seq
			}
			left -= len(page)
			if len(page) < limit || f.Limit > 0 && left == 0 {
				return
			}
		}
	}
}

// query joins constant conditions; every value is a parameter.
func (f Filter) query(after int64, limit int) (string, []any) {
	where, args := []string{"seq > $1"}, []any{after}
	add := func(condition string, values ...any) {
		for i := range values {
			condition = strings.Replace(condition, "?", fmt.Sprintf("$%d", len(args)+i+1), 1)
		}
		where, args = append(where, condition), append(args, values...)
	}
	if f.State != "" {
		add("state = ?", string(f.State))
	}
	if f.Kind != "" {
		add("kind = ?", f.Kind)
	}
	if f.Schedule != "" {
		add("schedule = ?", f.Schedule)
	}
	if f.Group != "" {
		add("group_key = ?", f.Group)
	}
	if f.Label[0] != "" {
		add("labels ->> ? = ?", f.Label[0], f.Label[1])
	}
	args = append(args, limit)
	return fmt.Sprintf("SELECT %s FROM rota_jobs WHERE %s ORDER BY seq LIMIT $%d",
		jobColumns, strings.Join(where, " AND "), len(args)), args
}

// Job reads one job; ErrNotFound if there is none of that id.
func (s *Scheduler) Job(ctx context.Context, id string) (*Job, error) {
	job := new(Job)
	if err := job.scan(s.store.DB().QueryRowContext(ctx, sqlJobByID, id)); err != nil {
		return nil, fmt.Errorf("rota: job %s: %w", id, s.orClosed(oneRow(err)))
	}
	return job, nil
}

// Attempts reads the evidence of one job, in order; ErrNotFound if there is no
// such job.
func (s *Scheduler) Attempts(ctx context.Context, id string) ([]Attempt, error) {
	job, err := s.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	all, err := queryAttempts(ctx, s.store.DB(), job)
	if err != nil {
		return nil, fmt.Errorf("rota: attempts of job %s: %w", id, s.orClosed(err))
	}
	return all, nil
}

func queryAttempts(ctx context.Context, tx Tx, job *Job) ([]Attempt, error) {
	rows, err := tx.QueryContext(ctx, sqlAttempts, job.ID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []Attempt
	for rows.Next() {
		a := Attempt{JobID: job.ID, Kind: job.Kind}
		var claimed, shortest, longest int64
		var started, finished, next sql.NullInt64
		var note []byte
		err := rows.Scan(&a.Number, &a.Runner, &a.Token, &claimed, &started, &finished, &a.Outcome, &a.Class,
			&a.Decision, &a.Reason, &a.Error, &next, &a.Bound, &shortest, &longest, &a.Stack, &note)
		if err != nil {
			return nil, err
		}
		a.ClaimedAt, a.StartedAt, a.FinishedAt, a.NextAt = fromMicros(claimed), nullTime(started), nullTime(finished), nullTime(next)
		a.DelayMin, a.DelayMax = time.Duration(shortest)*time.Microsecond, time.Duration(longest)*time.Microsecond
		a.Note = note
		all = append(all, a)
	}
	return all, rows.Err()
}

// Actions reads what people did, to the job of that id or, if it is empty, to
// all jobs, kinds and schedules, in order.
func (s *Scheduler) Actions(ctx context.Context, jobID string) ([]Action, error) {
	rows, err := s.store.DB().QueryContext(ctx, sqlActions, jobID)
	if err != nil {
		return nil, fmt.Errorf("rota: actions: %w", s.orClosed(err))
	}
	defer rows.Close()
	var all []Action
	for rows.Next() {
		var a Action
		var at int64
		if err := rows.Scan(&at, &a.Actor, &a.Action, &a.JobID, &a.Kind, &a.Schedule, &a.Reason, &a.Detail); err != nil {
			return nil, fmt.Errorf("rota: actions: %w", s.orClosed(err))
		}
		a.At = fromMicros(at)
		all = append(all, a)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("rota: actions: %w", s.orClosed(err))
	}
	return all, nil
}

// Schedules reads the pending (or paused) occurrence of every schedule, in the
// order of their names.
func (s *Scheduler) Schedules(ctx context.Context) ([]*Job, error) {
	heads, err := queryJobs(ctx, s.store.DB(), sqlHeads)
	if err != nil {
		return nil, fmt.Errorf("rota: schedules: %w", s.orClosed(err))
	}
	return heads, nil
}

// Lease reads who is the runner: one row, unlike Stats.
func (s *Scheduler) Lease(ctx context.Context) (Lease, error) {
	l, err := readLease(ctx, s.store.DB())
	if err != nil {
		return Lease{}, fmt.Errorf("rota: lease: %w", err)
	}
	return l, nil
}

// change reads a job and does something to it, in one transaction.
func (s *Scheduler) change(ctx context.Context, what, id string, do func(context.Context, Tx, *Job) error) error {
	err := s.writer.do(ctx, func(ctx context.Context, tx Tx) error {
		job := new(Job)
		if err := job.scan(tx.QueryRowContext(ctx, sqlJobByID, id)); err != nil {
			return oneRow(err)
		}
		return do(ctx, tx, job)
	})
	if err != nil {
		return fmt.Errorf("rota: %s job %s: %w", what, id, err)
	}
	return nil
}

const (
	sqlAskCancel = `UPDATE rota_jobs SET cancel_asked = $2 WHERE seq = $1`

	sqlEndByPerson = `UPDATE rota_jobs SET state = $2, reason = $3, finished_at = $4 WHERE seq = $1`
)

// Cancel ends a pending or held job; a running one's context is cancelled with
// ErrCancelled as the cause, also when it runs in another process, and it ends
// as what its handler then makes of it. A schedule's pending occurrence can't
// be cancelled (ErrState): use PauseSchedule or Unschedule. Nor can an ended
// job.
func (s *Scheduler) Cancel(ctx context.Context, id string, by By) error {
	return s.change(ctx, "cancel", id, func(ctx context.Context, tx Tx, job *Job) error {
		now := micros(time.Now())
		var err error
		switch {
		case job.head:
			return fmt.Errorf("%w: it is the next occurrence of schedule %s; pause or unschedule that", ErrState, job.Schedule)
		case job.State == Running:
			_, err = tx.ExecContext(ctx, sqlAskCancel, job.seq, now)
		case job.State == Pending || job.State == Held:
			_, err = tx.ExecContext(ctx, sqlEndByPerson, job.seq, string(Cancelled), reasonCancelled, now)
			if err == nil && job.State == Pending && !job.inLine {
				err = moveUp(ctx, tx, job.Kind, job.Group)
			}
		default:
			return fmt.Errorf("%w: it is %s", ErrState, job.State)
		}
		if err != nil {
			return err
		}
		return by.record(ctx, tx, "cancel", Action{JobID: id, Kind: job.Kind, Detail: detail("state", job.State)})
	})
}

// Resolve decides about a held job: as Succeeded if a person has found that its
// effect took place, as Dead if not and it is not to be repeated. Its evidence
// stays as it is; the decision is kept as an action.
func (s *Scheduler) Resolve(ctx context.Context, id string, as State, by By) error {
	return s.change(ctx, "resolve", id, func(ctx context.Context, tx Tx, job *Job) error {
		if as != Succeeded && as != Dead {
			return fmt.Errorf("%w: a held job is resolved as %q or %q, not as %q", ErrInvalid, Succeeded, Dead, as)
		}
		if job.State != Held {
			return fmt.Errorf("%w: it is %s, not held", ErrState, job.State)
		}
		if _, err := tx.ExecContext(ctx, sqlEndByPerson, job.seq, string(as), reasonResolved, micros(time.Now())); err != nil {
			return err
		}
		return by.record(ctx, tx, "resolve", Action{JobID: id, Kind: job.Kind, Detail: detail("as", as)})
	})
}

// ReplayOptions says how a job is done again.
type ReplayOptions struct {
	By

	// RunAt is the earliest start. Zero: at once.
	RunAt time.Time

	// NewIdempotencyKey gives the replay a key of its own, so that others do
	// the work again even if they have done it already.
	NewIdempotencyKey bool
}

// Replay makes a new job that does a dead, held, cancelled or succeeded one
// again: same kind, arguments and, unless told otherwise, idempotency key, with
// a fresh budget of attempts, linked by ReplayOf. The original and its evidence
// stay as they are; a held original waits on for Resolve, and keeps its unique
// key until then. If another live job has the unique key of a dead original,
// the answer is that job.
func (s *Scheduler) Replay(ctx context.Context, id string, o ReplayOptions) (Enqueued, error) {
	var answer [1]Enqueued
	err := s.change(ctx, "replay", id, func(ctx context.Context, tx Tx, job *Job) error {
		if !job.State.Terminal() && job.State != Held {
			return fmt.Errorf("%w: it is %s and will run by itself", ErrState, job.State)
		}
		opts := EnqueueOptions{RunAt: o.RunAt, Priority: job.Priority, Group: job.Group, Labels: job.Labels, Retry: job.Retry}
		if !job.once && job.State != Held { // those keep their key, and the replay is no second use of it
			opts.UniqueKey = job.UniqueKey
		}
		if !o.NewIdempotencyKey {
			opts.IdempotencyKey = job.IdempotencyKey
		}
		row, err := newRow(job.Kind, job.Args, opts, max(len(job.Args), s.cfg.MaxArgs))
		if err != nil {
			return err
		}
		row.replayOf = id
		if err := insertAll(ctx, tx, []jobRow{row}, answer[:]); err != nil {
			return err
		}
		return o.record(ctx, tx, "replay", Action{JobID: id, Kind: job.Kind, Detail: detail("as", answer[0].ID)})
	})
	if err != nil {
		return Enqueued{}, err
	}
	return answer[0], nil
}

func detail(key string, value any) string {
	data, _ := json.Marshal(map[string]any{key: value}) // strings only
	return string(data)
}

// Pause stops the kind, or all kinds if kind is "*": what runs goes on, nothing
// begins, in any process and through restarts, until Resume. Once it has
// returned, nothing of the kind is claimed any more.
func (s *Scheduler) Pause(ctx context.Context, kind string, by By) error {
	return s.pause(ctx, "pause", kind, by, `
		INSERT INTO rota_pauses (kind, since, actor, reason) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`)
}

// Resume lets a paused kind run again. Resume("*") ends a Pause("*"), not those
// of single kinds.
func (s *Scheduler) Resume(ctx context.Context, kind string, by By) error {
	return s.pause(ctx, "resume", kind, by, `
		DELETE FROM rota_pauses WHERE kind = $1 AND $2 > 0 AND $3 <> '' AND $4 IS NOT NULL`)
}

func (s *Scheduler) pause(ctx context.Context, what, kind string, by By, statement string) error {
	if kind != allKinds {
		if err := checkName("kind", kind); err != nil {
			return fmt.Errorf("rota: %s: %w", what, err)
		}
	}
	orDefault(&by.Actor, "unknown")
	err := s.writer.do(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.ExecContext(ctx, statement, kind, micros(time.Now()),
			safeText(by.Actor, 200, nil), safeText(by.Reason, maxErrorText, nil))
		if err != nil {
			return err
		}
		return by.record(ctx, tx, what, Action{Kind: kind})
	})
	if err != nil {
		return fmt.Errorf("rota: %s kind %s: %w", what, kind, err)
	}
	return nil
}

const pruneBatch = 500

const (
	sqlRetentionOn  = `INSERT INTO rota_meta (key, value) VALUES ('retention', $1)`
	sqlRetentionOff = `DELETE FROM rota_meta WHERE key = 'retention'`

	sqlPruneAttempts = `
		DELETE FROM rota_attempts WHERE job_id IN (
			SELECT id FROM rota_jobs WHERE state = $1 AND finished_at < $2 AND once = 0
			ORDER BY finished_at LIMIT $3)`

	sqlPruneJobs = `
		DELETE FROM rota_jobs WHERE seq IN (
			SELECT seq FROM rota_jobs WHERE state = $1 AND finished_at < $2 AND once = 0
			ORDER BY finished_at LIMIT $3)`
)

// Prune removes jobs that ended in that state (Succeeded, Dead or Cancelled)
// longer than age ago, with their evidence, and returns how many. It works in
// small transactions between which others write, so it may be called at any
// time, and what it has removed when ctx ends stays removed. Jobs that were
// enqueued with Once stay: they are the memory of their keys.
func (s *Scheduler) Prune(ctx context.Context, state State, age time.Duration) (int, error) {
	if !state.Terminal() || age < 0 {
		return 0, fmt.Errorf("rota: prune: %w: only ended jobs are pruned, by an age of zero or more; not %q, %v", ErrInvalid, state, age)
	}
	limit := micros(time.Now().Add(-age))
	total := 0
	for {
		var n int64
		err := s.writer.do(ctx, func(ctx context.Context, tx Tx) (err error) {
			n, err = pruneSome(ctx, tx, state, limit)
			return err
		})
		if err != nil {
			return total, fmt.Errorf("rota: prune %s jobs: %w", state, err)
		}
		total += int(n)
		if n < pruneBatch {
			return total, nil
		}
	}
}

func pruneSome(ctx context.Context, tx Tx, state State, limit int64) (int64, error) {
	if _, err := tx.ExecContext(ctx, sqlRetentionOn, fmt.Sprint(limit)); err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, sqlPruneAttempts, string(state), limit, pruneBatch); err != nil {
		return 0, err
	}
	res, err := tx.ExecContext(ctx, sqlPruneJobs, string(state), limit, pruneBatch)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, sqlRetentionOff)
	return n, err
}

// Backup writes a consistent copy of the whole database, the application's
// tables included, to a new file with the mode 0600, while others read and
// write. The name appears when the copy is complete and durable.
func (s *Scheduler) Backup(ctx context.Context, path string) error {
	if s.closing.Err() != nil {
		return fmt.Errorf("rota: backup to %s: %w", path, ErrClosed)
	}
	return s.store.Backup(ctx, path)
}

// oneRow turns "no rows" into ErrNotFound.
func oneRow(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// orClosed is why a read failed: after Close, that is the reason.
func (s *Scheduler) orClosed(err error) error {
	if s.closing.Err() != nil {
		return ErrClosed
	}
	return err
}

// queryJobs reads all rows of a query over jobColumns.
func queryJobs(ctx context.Context, tx Tx, query string, args ...any) ([]*Job, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []*Job
	for rows.Next() {
		job := new(Job)
		if err := job.scan(rows); err != nil {
			return nil, err
		}
		all = append(all, job)
	}
	return all, rows.Err()
}
