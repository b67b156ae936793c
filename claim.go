package rota

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"
)

// This file moves jobs between states on the runner's behalf: pending to
// running by a claim, running to what comes next by the end of an attempt. Each
// move and its evidence are one transaction.

const (
	sqlPauses = `SELECT kind FROM rota_pauses`

	sqlCancelAsked = `SELECT id FROM rota_jobs WHERE state = 'running' AND cancel_asked IS NOT NULL AND token = $1`

	// Due work is found kind by kind and priority by priority, so that no
	// number of jobs that may not run stands before one that may.
	sqlNextPriority = `
		SELECT priority FROM rota_jobs
		WHERE state = 'pending' AND in_line = 0 AND alone = 0 AND kind = $1 AND priority < $2
		ORDER BY priority DESC LIMIT 1`

	sqlNextJobs = `
		SELECT seq, run_at FROM rota_jobs
		WHERE state = 'pending' AND in_line = 0 AND alone = 0 AND kind = $1 AND priority = $2
		ORDER BY run_at, seq LIMIT $3`

	// Of the jobs that may have killed the process, and for which another death
	// is the last, one runs at a time: so the guilty one dies alone.
	sqlAlone = `
		SELECT seq, kind, priority, run_at FROM rota_jobs
		WHERE state = 'pending' AND in_line = 0 AND alone = 1 ORDER BY run_at, seq`

	sqlJobBySeq = `SELECT ` + jobColumns + ` FROM rota_jobs WHERE seq = $1`

	sqlClaim = `
		UPDATE rota_jobs SET state = 'running', attempt = attempt + 1, token = $2,
			started_at = coalesce(started_at, $3), reason = NULL,
			spec = NULL, zone = NULL, rule = NULL
		WHERE seq = $1`

	sqlOpenAttempt = `
		INSERT INTO rota_attempts (job_id, number, runner, token, claimed_at, started_at, note)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`

	sqlStartAttempt = `
		UPDATE rota_attempts SET started_at = $3
		WHERE job_id = $1 AND number = $2 AND outcome IS NULL`

	sqlRefuse = `UPDATE rota_jobs SET state = $2, reason = $3, finished_at = $4 WHERE seq = $1`

	sqlEndJob = `
		UPDATE rota_jobs SET state = $4, run_at = coalesce($5, run_at), spent = spent + $6,
			deaths = deaths + $7, alone = CASE WHEN $12 = 1 THEN 1 ELSE alone END, doubt = $8, reason = $9, finished_at = $10, cancel_asked = NULL,
			error = CASE WHEN $4 = 'succeeded' THEN NULL ELSE coalesce($11, error) END
		WHERE seq = $1 AND state = 'running' AND token = $2 AND attempt = $3`

	sqlCloseAttempt = `
		UPDATE rota_attempts SET finished_at = $3, outcome = $4, class = $5, decision = $6, reason = $7,
			error = $8, next_at = $9, bound = $10, delay_min = $11, delay_max = $12, stack = $13, note = coalesce($14, note)
		WHERE job_id = $1 AND number = $2 AND outcome IS NULL`

	sqlCancelIsAsked = `SELECT cancel_asked IS NOT NULL FROM rota_jobs WHERE seq = $1`

	sqlStateOf = `SELECT state FROM rota_jobs WHERE seq = $1`

	sqlOrphans = `SELECT ` + jobColumns + ` FROM rota_jobs WHERE state = 'running' AND token < $1 LIMIT $2`

	sqlHadStarted = `SELECT started_at, claimed_at, runner FROM rota_attempts WHERE job_id = $1 AND number = $2`
)

// wanted is a kind with free slots.
type wanted struct {
	kind string
	free int
}

// found is what a look at the table gave.
type found struct {
	jobs   []*Job    // claimed
	cancel []string  // running jobs that a person wants stopped
	ended  []Attempt // of firings that were skipped
	next   time.Time // when to look again; the far future if nothing is waiting
}

// due is a pending job that may be claimed.
type due struct {
	seq, runAt int64
	kind       string
	priority   int
	alone      bool
}

// claimDue claims as many due jobs as there are slots, in one transaction.
func (t *term) claimDue(ctx context.Context) (found, error) {
	kinds, _ := t.wants(time.Now())
	slots := t.s.cfg.MaxRunning - len(t.running) - max(int(t.s.hung.Load())-t.s.cfg.MaxHung, 0)
	alone := t.alone
	var f found
	wr := t.s.writer.add(&write{token: t.token, apply: func(ctx context.Context, tx Tx) (err error) {
		f, err = t.claimTx(ctx, tx, kinds, slots, alone, time.Now())
		return err
	}})
	err := t.s.writer.wait(ctx, wr)
	if errors.Is(err, ErrUncertain) {
		// The jobs may be ours already; they must not lie about unworked.
		<-wr.done
		err = wr.err
	}
	if err != nil {
		return found{}, err
	}
	t.record(f.ended...)
	return f, nil
}

// wants lists the kinds that may begin something now, and when a kind that has
// used up its rate may again. A kind at its limit needs no such time: the end
// of one of its handlers is a reason to look.
func (t *term) wants(now time.Time) (kinds []wanted, later time.Time) {
	later = farFuture
	for _, kind := range t.s.kinds() {
		p := t.s.policy(kind)
		free := t.s.cfg.MaxRunning
		if p.MaxRunning > 0 {
			free = min(free, p.MaxRunning-t.perKind[kind])
		}
		if p.Rate.Count > 0 {
			w := t.rates[kind]
			if w == nil {
				w = &rateWindow{}
				t.rates[kind] = w
			}
			n, at := w.free(p.Rate, now)
			if n == 0 {
				later = earlier(later, at)
			}
			free = min(free, n)
		}
		if free > 0 {
			kinds = append(kinds, wanted{kind, free})
		}
	}
	return kinds, later
}

func (t *term) claimTx(ctx context.Context, tx Tx, kinds []wanted, slots int, alone bool, now time.Time) (found, error) {
	f := found{next: farFuture}
	var err error
	if f.cancel, err = texts(ctx, tx, sqlCancelAsked, t.token); err != nil {
		return f, err
	}
	pauses, err := texts(ctx, tx, sqlPauses)
	if err != nil || slices.Contains(pauses, allKinds) || slots <= 0 {
		return f, err
	}
	resume, err := t.s.resumeDue(ctx, tx, now)
	if err != nil {
		return f, err
	}
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k wanted) bool { return slices.Contains(pauses, k.kind) })
	var ready []due
	if !alone {
		if ready, f.next, err = dueAlone(ctx, tx, kinds, now); err != nil {
			return f, err
		}
	}
	f.next = earlier(f.next, resume)
	for _, k := range kinds {
		if len(ready) > 0 && ready[0].alone && ready[0].kind == k.kind {
			k.free--
		}
		jobs, next, err := dueJobs(ctx, tx, k.kind, min(k.free, slots), now)
		if err != nil {
			return f, err
		}
		ready = append(ready, jobs...)
		f.next = earlier(f.next, next)
	}
	slices.SortFunc(ready, func(a, b due) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.runAt, b.runAt), cmp.Compare(a.seq, b.seq))
	})
	for _, d := range ready[:min(len(ready), slots)] {
		if err := t.claimOne(ctx, tx, d, now, &f); err != nil {
			return f, err
		}
	}
	if len(f.jobs) < min(len(ready), slots) {
		f.next = now // those that were skipped or refused leave slots to others
	}
	return f, nil
}

// dueJobs finds up to limit due jobs of the kind, the highest priority first,
// and the time at which the next one will be due, if it meets one. If there are
// more due jobs than limit, the end of a handler is the time to look again.
func dueJobs(ctx context.Context, tx Tx, kind string, limit int, now time.Time) (jobs []due, next time.Time, err error) {
	next = farFuture
	for priority := 1 << 30; limit > 0; {
		err = tx.QueryRowContext(ctx, sqlNextPriority, kind, priority).Scan(&priority)
		if errors.Is(err, sql.ErrNoRows) {
			return jobs, next, nil
		}
		if err != nil {
			return nil, next, err
		}
		rows, err := tx.QueryContext(ctx, sqlNextJobs, kind, priority, limit+1)
		if err != nil {
			return nil, next, err
		}
		for rows.Next() {
			d := due{kind: kind, priority: priority}
			if err := rows.Scan(&d.seq, &d.runAt); err != nil {
				rows.Close()
				return nil, next, err
			}
			if at := fromMicros(d.runAt); at.After(now) {
				next = earlier(next, at)
				break
			}
			if limit == 0 {
				break
			}
			jobs = append(jobs, d)
			limit--
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, next, err
		}
	}
	return jobs, next, nil
}

// dueAlone finds the first due job of those that run one at a time.
func dueAlone(ctx context.Context, tx Tx, kinds []wanted, now time.Time) (first []due, next time.Time, err error) {
	next = farFuture
	rows, err := tx.QueryContext(ctx, sqlAlone)
	if err != nil {
		return nil, next, err
	}
	defer rows.Close()
	for rows.Next() {
		d := due{alone: true}
		if err := rows.Scan(&d.seq, &d.kind, &d.priority, &d.runAt); err != nil {
			return nil, next, err
		}
		if !slices.ContainsFunc(kinds, func(k wanted) bool { return k.kind == d.kind }) {
			continue
		}
		if at := fromMicros(d.runAt); at.After(now) {
			return nil, at, nil
		}
		return []due{d}, next, nil
	}
	return nil, next, rows.Err()
}

// claimOne moves a due job to running and opens its attempt, unless it may not
// run: its schedule's policy, or a bound, says so.
func (t *term) claimOne(ctx context.Context, tx Tx, d due, now time.Time, f *found) error {
	job := new(Job)
	if err := job.scan(tx.QueryRowContext(ctx, sqlJobBySeq, d.seq)); err != nil {
		return err
	}
	p := t.s.policy(job.Kind)
	if state, reason := admit(job, p, now); state != "" {
		return refuse(ctx, tx, job, state, reason, now)
	}
	var plan advance
	if job.head {
		var err error
		if plan, err = planNext(ctx, tx, job, now); errors.Is(err, ErrSpec) {
			return t.s.markBroken(ctx, tx, job, err)
		} else if err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, sqlClaim, d.seq, t.token, micros(now)); err != nil {
		return err
	}
	if job.head {
		if err := t.s.goOn(ctx, tx, job, plan.next); err != nil {
			return err
		}
		if plan.next != nil {
			f.next = earlier(f.next, plan.next.slot)
		}
	}
	job.State, job.Reason, job.token = Running, "", t.token
	job.Attempt++
	if job.StartedAt.IsZero() {
		job.StartedAt = fromMicros(micros(now))
	}
	x := &execution{t: t, job: job, handler: t.s.handler(job.Kind), redact: t.s.cfg.Redact, claimed: now, began: now, alone: d.alone}
	if p.OnUnknown == UnknownRetry && plan.skip == "" {
		x.started.Store(&now) // from here on it may have begun, and that is all such kinds need to know
	}
	job.run = x
	for key, value := range plan.notes {
		job.Note(key, value)
	}
	// With its notes, which must outlive this process: the firings that are
	// coalesced here stand nowhere else.
	_, err := tx.ExecContext(ctx, sqlOpenAttempt, job.ID, job.Attempt, t.s.name, t.token,
		micros(now), nullMicros(x.startedAt()), x.notes.text(false))
	if err != nil {
		return err
	}
	if plan.skip == "" {
		f.jobs = append(f.jobs, job)
		return nil
	}
	end := x.close(result{verdict: verdict{outcome: OutcomeSkipped, class: plan.skip, after: -1}, reason: plan.skip})
	f.ended = append(f.ended, end.attempt())
	return end.write(ctx, tx)
}

// refuse ends a job that may not begin another attempt.
func refuse(ctx context.Context, tx Tx, job *Job, state State, reason string, now time.Time) error {
	var finished any
	if state.Terminal() {
		finished = micros(now)
	}
	if _, err := tx.ExecContext(ctx, sqlRefuse, job.seq, string(state), reason, finished); err != nil {
		return err
	}
	return moveUp(ctx, tx, job.Kind, job.Group)
}

// attemptEnd is the end of an attempt: what came of it and what is done about
// it, ready to be written.
type attemptEnd struct {
	job      *Job
	runner   string
	token    int64
	claimed  time.Time
	started  time.Time // zero: the handler had not begun
	at       time.Time
	result   result
	decision decision
	doubt    bool
	errText  string
	note     any
	// completed is the end that CompleteTx has written in the handler's own
	// transaction; nil: it was not called. Whether that transaction was
	// committed shows when this end is written: if so, nothing is left to do
	// but to say so (done); if not, other is the end of a handler that says it
	// has succeeded.
	completed *attemptEnd
	done      bool
	other     *attemptEnd
}

var errNotCommitted = errors.New("the handler returned nil without committing the transaction that it gave to CompleteTx")

// close decides what comes of the attempt. Durations are measured on the
// monotonic clock and added to the start, so that a set clock can't make them
// negative.
func (x *execution) close(r result) *attemptEnd {
	e := x.newEnd(r, true)
	if e.completed = x.completed.Load(); e.completed != nil && r.outcome == OutcomeSucceeded {
		e.other = x.newEnd(result{verdict: verdict{
			outcome: OutcomeRetry, class: classNotComplete, after: -1, err: errNotCommitted}}, true)
	}
	return e
}

func (x *execution) newEnd(r result, final bool) *attemptEnd {
	doubt := x.job.doubt && !x.cleared.Load()
	e := x.t.s.decideEnd(x.job, x.handler.policy, r, x.began.Round(0).Add(time.Since(x.began)), doubt)
	e.claimed, e.started, e.runner, e.token, e.note = x.claimed, x.startedAt(), x.t.s.name, x.t.token, x.notes.text(final)
	return e
}

// decideEnd decides about a result.
func (s *Scheduler) decideEnd(job *Job, p Policy, r result, now time.Time, doubt bool) *attemptEnd {
	e := &attemptEnd{job: job, at: now}
	e.decision = decide(job, p, &r, now, doubt)
	e.result = r
	e.errText = safeText(errorText(r.err), maxErrorText, s.cfg.Redact)
	e.result.stack = safeText(r.stack, maxStack, s.cfg.Redact)
	e.doubt = r.outcome == OutcomeUnknown || doubt && r.outcome != OutcomeSucceeded
	return e
}

// nextAt is when the job is due again, or the zero time.
func (e *attemptEnd) nextAt() time.Time {
	if e.decision.state != Pending {
		return time.Time{}
	}
	return e.at.Add(e.decision.delay)
}

// write moves the job to its next state and closes the attempt. Nothing else
// does.
func (e *attemptEnd) write(ctx context.Context, tx Tx) error {
	if e.completed != nil {
		var state State
		if err := tx.QueryRowContext(ctx, sqlStateOf, e.job.seq).Scan(&state); err != nil {
			return err
		}
		if e.done = state == Succeeded; e.done {
			return nil
		}
		if e.other != nil {
			*e = *e.other
		}
		e.completed = nil
	}
	d := &e.decision
	if d.state == Pending { // unless a person decided otherwise meanwhile
		var asked bool
		if err := tx.QueryRowContext(ctx, sqlCancelIsAsked, e.job.seq).Scan(&asked); err != nil {
			return err
		}
		if asked {
			d.state, d.reason = Cancelled, reasonCancelled
			if e.result.outcome == OutcomeRetry {
				e.result.outcome = OutcomeFailed
			}
		}
	}
	var finished any
	if d.state.Terminal() {
		finished = micros(e.at)
	}
	res, err := tx.ExecContext(ctx, sqlEndJob, e.job.seq, e.token, e.job.Attempt, string(d.state),
		nullMicros(e.nextAt()), flag(d.spent), flag(d.died), flag(e.doubt), d.reason, finished, text(e.errText), flag(d.alone))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("job %s: attempt %d is not running any more: %w", e.job.ID, e.job.Attempt, ErrState))
	}
	var bound, shortest, longest any
	if d.bound > 0 {
		bound, shortest, longest = d.bound, d.shortest.Microseconds(), d.longest.Microseconds()
	}
	_, err = tx.ExecContext(ctx, sqlCloseAttempt, e.job.ID, e.job.Attempt, micros(e.at), string(e.result.outcome),
		e.result.class, string(d.state), d.reason, text(e.errText), nullMicros(e.nextAt()),
		bound, shortest, longest, text(e.result.stack), e.note)
	if err != nil {
		return err
	}
	if d.state != Pending {
		return moveUp(ctx, tx, e.job.Kind, e.job.Group)
	}
	return nil
}

// attempt is the record as Attempts would read it.
func (e *attemptEnd) attempt() Attempt {
	a := Attempt{
		JobID: e.job.ID, Kind: e.job.Kind, Number: e.job.Attempt, Runner: e.runner, Token: e.token,
		ClaimedAt: stored(e.claimed), StartedAt: stored(e.started), FinishedAt: stored(e.at), NextAt: stored(e.nextAt()),
		Outcome: e.result.outcome, Class: e.result.class, Decision: e.decision.state, Reason: e.decision.reason,
		Error: e.errText, Bound: e.decision.bound, DelayMin: e.decision.shortest.Truncate(time.Microsecond), DelayMax: e.decision.longest.Truncate(time.Microsecond),
		Stack: e.result.stack,
	}
	if a.Bound == 0 { // no delay was asked of a policy
		a.DelayMin, a.DelayMax = 0, 0
	}
	if note, ok := e.note.(string); ok {
		a.Note = []byte(note)
	}
	return a
}

// completeTx writes success through the handler's transaction, if the lease is
// still this runner's.
func (x *execution) completeTx(ctx context.Context, tx Tx) error {
	fail := func(err error) error {
		return fmt.Errorf("rota: complete job %s: %w", x.job.ID, err)
	}
	var current int64
	if err := tx.QueryRowContext(ctx, sqlLeaseToken).Scan(&current); err != nil {
		return fail(err)
	}
	if current != x.t.token {
		return fail(ErrLeaseLost)
	}
	end := x.newEnd(classify(nil, nil), false)
	x.completed.Store(end)
	if err := end.write(ctx, tx); errors.Is(err, ErrState) {
		return fail(fmt.Errorf("%w: %w", ErrLeaseLost, err)) // the attempt was given up and closed
	} else if err != nil {
		return fail(err)
	}
	return nil
}

// closeOrphans ends the attempts that an earlier runner left open: it died, or
// lost its lease. What came of them can't be known, unless the handler had
// provably not begun.
func (t *term) closeOrphans(ctx context.Context) error {
	const some = 500
	for {
		var closed []Attempt
		err := t.s.writer.doFenced(ctx, t.token, func(ctx context.Context, tx Tx) error {
			closed = nil
			orphans, err := queryJobs(ctx, tx, sqlOrphans, t.token, some)
			if err != nil {
				return err
			}
			for _, job := range orphans {
				end, err := t.closeOrphan(ctx, tx, job)
				if err != nil {
					return fmt.Errorf("job %s: attempt %d: %w", job.ID, job.Attempt, err)
				}
				closed = append(closed, end.attempt())
			}
			return nil
		})
		if err != nil {
			return err
		}
		t.record(closed...)
		if len(closed) < some {
			return nil
		}
	}
}

func (t *term) closeOrphan(ctx context.Context, tx Tx, job *Job) (*attemptEnd, error) {
	var started, claimed sql.NullInt64
	var runner string
	err := tx.QueryRowContext(ctx, sqlHadStarted, job.ID, job.Attempt).Scan(&started, &claimed, &runner)
	if err != nil && !errors.Is(err, sql.ErrNoRows) { // an edited table must not stop the others
		return nil, err
	}
	r := result{verdict: verdict{outcome: OutcomeUnknown, class: classProcessDied, after: -1,
		err: errors.New("the runner ended without recording what came of this attempt")}}
	if err == nil && !started.Valid {
		r.outcome, r.class = OutcomeInterrupted, classNotStarted
		r.err = errors.New("the runner ended before the handler began")
	}
	now := time.Now()
	if began := nullTime(claimed); now.Before(began) {
		now = began // the clock was set back; an end is never before its start
	}
	end := t.s.decideEnd(job, t.s.policy(job.Kind), r, now, job.doubt)
	if d := &end.decision; t.s.handler(job.Kind) == nil && r.outcome == OutcomeUnknown {
		// Its bounds are not known here. Who knows them looks before the claim.
		*d = decision{state: Pending, reason: reasonProcessDied, died: true, alone: d.alone || d.state == Dead}
	}
	end.token, end.claimed, end.started, end.runner = job.token, nullTime(claimed), nullTime(started), runner
	return end, end.write(ctx, tx)
}

// texts reads the one text column of a query.
func texts(ctx context.Context, tx Tx, query string, args ...any) ([]string, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}
