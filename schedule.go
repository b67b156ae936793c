package rota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A schedule has no table: it is its one pending occurrence, a job like any
// other that also carries the spec. The claim of that job inserts the next one
// in the same transaction, so there is always exactly one, and no instant runs
// twice. Everything here works on that row.

// Schedule says when a kind's job is to be run, again and again.
type Schedule struct {
	// Name identifies the schedule in the database; 1 to 200 bytes of
	// printable text without spaces.
	Name string

	// Spec is a cron expression, a descriptor such as "@daily", or
	// "@every 90m"; see ParseSpec.
	Spec string

	// Zone is the IANA name of the time zone that Spec is meant in. Empty
	// means UTC.
	Zone string

	// Seconds says that Spec has a field for seconds in front.
	Seconds bool

	// Missed says what becomes of firings for which no runner was there.
	Missed Missed

	// CatchUp bounds the firings that MissedAll makes up in a row; the rest is
	// recorded as coalesced with the last of them. Zero means 100.
	CatchUp int

	// Deadline bounds how late a firing may begin; one that is later is
	// recorded as skipped. Zero means no bound, and 1 min for MissedSkip.
	Deadline time.Duration

	// Overlap says what becomes of a firing while the last one is not done.
	Overlap Overlap

	// NotBefore and NotAfter bound the instants at which it fires, both
	// included. Zero means no bound. A schedule whose last firing has passed
	// has ended: it has no occurrence any more.
	NotBefore, NotAfter time.Time

	// Options are those of each occurrence. RunAt, UniqueKey, Once and
	// IdempotencyKey are a schedule's own matter and must be unset.
	Options EnqueueOptions
}

// Missed is the policy for firings whose time passed without a runner.
type Missed string

const (
	// MissedOnce, the default, runs once, late, and then goes on from now.
	MissedOnce Missed = "once"
	// MissedAll runs each, the oldest first, up to CatchUp.
	MissedAll Missed = "all"
	// MissedSkip runs none.
	MissedSkip Missed = "skip"
)

// Overlap is the policy for a firing while an earlier one is pending a retry
// or running.
type Overlap string

const (
	// OverlapWait, the default, waits for it to end.
	OverlapWait Overlap = "wait"
	// OverlapSkip records the firing as skipped.
	OverlapSkip Overlap = "skip"
	// OverlapAllow runs both.
	OverlapAllow Overlap = "allow"
)

const (
	defaultCatchUp = 100
	defaultTooLate = time.Minute // for MissedSkip
	maxCoalesced   = 10_000      // counted one by one
)

// rule is what the pending occurrence knows of its schedule besides spec and
// zone.
type rule struct {
	Seconds   bool    `json:"seconds,omitempty"`
	Missed    Missed  `json:"missed"`
	CatchUp   int     `json:"catch_up,omitempty"`
	Deadline  int64   `json:"deadline_us,omitempty"`
	Overlap   Overlap `json:"overlap"`
	NotBefore int64   `json:"not_before_us,omitempty"`
	NotAfter  int64   `json:"not_after_us,omitempty"`
	Anchor    int64   `json:"anchor_us"`              // when it was first declared: the phase of @every
	Declared  bool    `json:"declared,omitempty"`     // by the program; else at run time
	Caught    int     `json:"caught,omitempty"`       // firings made up so far, in a row
	PausedTo  int64   `json:"paused_to_us,omitempty"` // when the last pause ended
}

// firings are the instants of a schedule: its spec's, within its bounds.
type firings struct {
	spec     Spec
	from, to time.Time // zero: no bound
}

func (r *rule) firings(spec Spec) firings {
	f := firings{spec: spec.Anchored(fromMicros(r.Anchor))}
	if r.NotBefore != 0 {
		f.from = fromMicros(r.NotBefore)
	}
	if r.NotAfter != 0 {
		f.to = fromMicros(r.NotAfter)
	}
	return f
}

// next is the first firing after the instant; false when the schedule has ended.
func (f firings) next(after time.Time) (time.Time, bool) {
	if after.Before(f.from) {
		after = f.from.Add(-1)
	}
	at, ok := f.spec.Next(after)
	return at, ok && (f.to.IsZero() || !at.After(f.to))
}

// between are the firings from from to to, both included, at most so many.
func (f firings) between(from, to time.Time, most int) (all []time.Time) {
	for at, ok := f.next(from.Add(-1)); ok && !at.After(to) && len(all) < most; at, ok = f.next(at) {
		all = append(all, at)
	}
	return all
}

// errEnded says that a schedule never fires again.
var errEnded = fmt.Errorf("%w: it has no firing any more before its NotAfter", ErrConfig)

// declaration is a schedule that has been checked, with its arguments.
type declaration struct {
	name string
	spec Spec
	row  jobRow // of an occurrence, without its instant
	rule rule
}

// Declare makes the schedule part of the program: Run writes it down when it
// begins. A schedule that an earlier version of the program declared and this
// one does not is removed then; one that has changed is moved, and stays paused
// if a person has paused it. What is wrong with it is returned at once, and by
// Run. A program that only declares, and runs nothing, calls RunDue without
// having a handler.
func (k Kind[T]) Declare(s *Scheduler, sch Schedule, args T) error {
	d, err := declare(string(k), sch, args, s.cfg.MaxArgs)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.declared {
		if err == nil && other.name == sch.Name {
			err = fmt.Errorf("rota: schedule %s: %w: it is declared already", sch.Name, ErrConfig)
		}
	}
	if err != nil {
		s.faults = append(s.faults, err)
		return err
	}
	d.rule.Declared = true
	s.declared = append(s.declared, d)
	return nil
}

// Schedule makes or changes a schedule at run time. It stays, through restarts,
// until Unschedule.
func (k Kind[T]) Schedule(ctx context.Context, s *Scheduler, sch Schedule, args T) error {
	d, err := declare(string(k), sch, args, s.cfg.MaxArgs)
	if err != nil {
		return err
	}
	err = s.writer.do(ctx, func(ctx context.Context, tx Tx) error {
		head, err := findHead(ctx, tx, d.name)
		if err != nil {
			return err
		}
		return d.upsert(ctx, tx, head, time.Now())
	})
	if err != nil {
		return fmt.Errorf("rota: schedule %s: %w", sch.Name, err)
	}
	return nil
}

// declare checks a schedule and its arguments. Its errors match ErrSpec,
// ErrConfig or ErrInvalid.
func declare(kind string, sch Schedule, args any, maxArgs int) (declaration, error) {
	d := declaration{name: sch.Name}
	fail := func(err error) (declaration, error) {
		return declaration{}, fmt.Errorf("rota: schedule %s: %w", sch.Name, err)
	}
	if err := checkName("schedule", sch.Name); err != nil {
		return fail(err)
	}
	var err error
	if d.spec, err = ParseSpec(sch.Spec, SpecOptions{Zone: sch.Zone, Seconds: sch.Seconds, Name: sch.Name}); err != nil {
		return fail(err)
	}
	d.rule = rule{Seconds: sch.Seconds, Missed: sch.Missed, Deadline: sch.Deadline.Microseconds(), Overlap: sch.Overlap}
	if !sch.NotBefore.IsZero() {
		d.rule.NotBefore = micros(sch.NotBefore)
	}
	if !sch.NotAfter.IsZero() {
		d.rule.NotAfter = micros(sch.NotAfter)
	}
	orDefault(&d.rule.Missed, MissedOnce)
	orDefault(&d.rule.Overlap, OverlapWait)
	if d.rule.Missed == MissedAll {
		d.rule.CatchUp = sch.CatchUp
		orDefault(&d.rule.CatchUp, defaultCatchUp)
	}
	o := sch.Options
	switch bad := func(format string, args ...any) (declaration, error) {
		return fail(fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}; {
	case d.rule.Missed != MissedOnce && d.rule.Missed != MissedAll && d.rule.Missed != MissedSkip:
		return bad(`missed is %q; allowed: "once", "all", "skip"`, sch.Missed)
	case d.rule.Overlap != OverlapWait && d.rule.Overlap != OverlapSkip && d.rule.Overlap != OverlapAllow:
		return bad(`overlap is %q; allowed: "wait", "skip", "allow"`, sch.Overlap)
	case !sch.NotBefore.IsZero() && !sch.NotAfter.IsZero() && sch.NotAfter.Before(sch.NotBefore):
		return bad("NotAfter %v is before NotBefore %v", sch.NotAfter, sch.NotBefore)
	case sch.CatchUp < 0 || sch.Deadline < 0:
		return bad("catch_up and deadline must be zero or more")
	case o.UniqueKey != "" || o.Once || o.IdempotencyKey != "" || !o.RunAt.IsZero():
		return bad("its options must not set RunAt, UniqueKey, Once or IdempotencyKey")
	}
	if o.Group == "" && d.rule.Overlap == OverlapWait {
		o.Group = ownGroup(sch.Name) // one at a time, and that is all there is to waiting
	}
	if d.row, err = newRow(kind, args, o, maxArgs); err != nil {
		return fail(err)
	}
	d.row.schedule, d.row.spec, d.row.zone = sch.Name, sch.Spec, text(sch.Zone)
	return d, nil
}

// ownGroup is the group in which a schedule's occurrences wait for each other.
func ownGroup(schedule string) string { return "schedule:" + schedule }

const (
	sqlHead  = `SELECT ` + jobColumns + ` FROM rota_jobs WHERE schedule = $1 AND spec IS NOT NULL`
	sqlHeads = `SELECT ` + jobColumns + ` FROM rota_jobs WHERE spec IS NOT NULL ORDER BY schedule`

	sqlDeleteHead = `DELETE FROM rota_jobs WHERE seq = $1`

	sqlSlotUsed = `
		SELECT EXISTS (SELECT 1 FROM rota_jobs
			WHERE schedule = $1 AND scheduled_for = $2 AND origin <> 'now' AND spec IS NULL)`

	sqlOccurrenceLives = `
		SELECT count(*) FROM rota_jobs
		WHERE schedule = $1 AND state IN ('pending', 'paused', 'running') AND seq <> $2`

	sqlPauseHead = `
		UPDATE rota_jobs SET state = 'paused', reason = $2, error = $3, resume_at = $4, in_line = 0
		WHERE seq = $1`
)

// findHead reads a schedule's next occurrence; nil if there is no schedule of
// that name.
func findHead(ctx context.Context, tx Tx, name string) (*Job, error) {
	found, err := queryJobs(ctx, tx, sqlHead, name)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// upsert makes the schedule's next occurrence what the declaration says, and
// writes nothing if it is that already. It fails with errEnded if there is no
// next occurrence.
func (d *declaration) upsert(ctx context.Context, tx Tx, head *Job, now time.Time) error {
	next := occurrence{row: d.row, rule: d.rule}
	next.rule.Anchor = micros(now.Truncate(time.Second))
	if head != nil {
		sameTimes := head.ruleErr == nil && head.Spec == d.row.spec && head.Zone == str(d.row.zone) &&
			head.rule.Seconds == d.rule.Seconds && head.rule.NotBefore == d.rule.NotBefore && head.rule.NotAfter == d.rule.NotAfter
		if head.ruleErr == nil {
			next.rule.Anchor, next.rule.PausedTo = head.rule.Anchor, head.rule.PausedTo
		}
		if sameTimes {
			next.rule.Caught = head.rule.Caught
		}
		if sameTimes || next.isDue(head, now) {
			next.slot = head.ScheduledFor
		}
		if sameTimes && next.rule == head.rule && d.row.sameAs(head) {
			return nil
		}
		if err := deleteHead(ctx, tx, head); err != nil {
			return err
		}
		if head.State == Paused && head.Reason != reasonBroken {
			next.row.state, next.row.reason, next.row.resumeAt = Paused, text(head.Reason), nullMicros(head.resumeAt)
		}
	}
	next.firings = next.rule.firings(d.spec)
	if next.slot.IsZero() {
		var ok bool
		if next.slot, ok = next.firings.next(now); !ok {
			return errEnded
		}
	}
	return next.insertNext(ctx, tx)
}

// isDue tells whether the schedule's last firing has come and has not been dealt
// with: a change of the schedule does not undo that, unless it is outside the
// new bounds.
func (o *occurrence) isDue(head *Job, now time.Time) bool {
	slot := head.ScheduledFor
	return head.ruleErr == nil && !slot.IsZero() && !slot.After(now) && micros(slot) >= o.rule.NotBefore &&
		(o.rule.NotAfter == 0 || micros(slot) <= o.rule.NotAfter)
}

// sameAs compares what a declaration can change.
func (r *jobRow) sameAs(job *Job) bool {
	return r.kind == job.Kind && r.args == string(job.Args) && r.priority == job.Priority && str(r.group) == job.Group &&
		r.retry == retryText(job.Retry) && r.labels == labelsText(job.Labels)
}

func str(v any) string {
	s, _ := v.(string)
	return s
}

// occurrence is a schedule's next job, about to be inserted.
type occurrence struct {
	row     jobRow
	rule    rule
	firings firings
	slot    time.Time
}

// insertNext inserts the occurrence at its slot. A slot that has been used
// already (by a backfill, or the clock was set back since) is passed over.
func (o *occurrence) insertNext(ctx context.Context, tx Tx) error {
	data, _ := json.Marshal(o.rule) // a struct of plain fields
	id, err := newID()
	if err != nil {
		return err
	}
	row := o.row
	row.id, row.idempotencyKey, row.createdAt, row.rule = id, id, micros(time.Now()), string(data)
	slot, ok, err := o.firings.unused(ctx, tx, str(row.schedule), o.slot)
	if err != nil {
		return err
	}
	if !ok {
		return errEnded
	}
	row.runAt, row.scheduledFor = micros(slot), micros(slot)
	inserted, err := row.insert(ctx, tx)
	if err == nil && !inserted {
		err = fmt.Errorf("%w: it has a next occurrence already", ErrState)
	}
	return err
}

// unused is the firing at slot or, if that has an occurrence already, the first
// one after it that has none; false if there is none.
func (f firings) unused(ctx context.Context, tx Tx, schedule string, slot time.Time) (time.Time, bool, error) {
	for ok := true; ok; slot, ok = f.next(slot) {
		var used bool
		err := tx.QueryRowContext(ctx, sqlSlotUsed, schedule, micros(slot)).Scan(&used)
		if err != nil || !used {
			return slot, true, err
		}
	}
	return slot, false, nil
}

// advance is what the claim of a schedule's occurrence does about the schedule.
type advance struct {
	skip  string         // the reason not to run this occurrence; "" runs it
	next  *occurrence    // nil: the schedule has ended
	notes map[string]any // for the evidence
}

// planNext applies the policies for missed and overlapping firings to an
// occurrence that is due. The next slot follows from this one's and never from
// the time at which the timer went off. It fails with ErrSpec if the row's spec
// can't be read any more.
func planNext(ctx context.Context, tx Tx, job *Job, now time.Time) (advance, error) {
	var plan advance
	spec, err := job.parseSpec()
	if err != nil {
		return plan, err
	}
	r := job.rule
	all := r.firings(spec)
	slot, deadline := job.ScheduledFor, time.Duration(r.Deadline)*time.Microsecond
	if r.Missed == MissedSkip && deadline == 0 {
		deadline = defaultTooLate
	}
	from := now // the next slot is the first one after this
	switch {
	case slot.Before(fromMicros(r.PausedTo)):
		plan.skip, from = reasonPaused, fromMicros(r.PausedTo).Add(-1)
	case deadline > 0 && now.Sub(slot) > deadline:
		plan.skip = reasonTooLate
		if r.Missed != MissedSkip {
			from = now.Add(-deadline - 1) // a later firing may still be in time
		}
	case r.Missed == MissedAll && r.Caught < r.CatchUp-1:
		from = slot
	}
	r.Caught++
	if plan.skip != "" {
		r.Caught = 0
	}
	if plan.skip == "" && r.Overlap == OverlapSkip {
		var living int
		if err := tx.QueryRowContext(ctx, sqlOccurrenceLives, job.Schedule, job.seq).Scan(&living); err != nil {
			return plan, err
		}
		if living > 0 {
			plan.skip = reasonOverlap
		}
	}
	plan.notes = all.coalesced(slot, from)
	if note := spec.firing(slot).Note; note != "" {
		plan.notes["daylight_saving"] = note
	}
	next, ok := all.next(later(slot, from))
	if !ok {
		return plan, nil
	}
	if next.After(now) {
		r.Caught = 0
	}
	plan.next = &occurrence{row: nextRow(job), rule: r, firings: all, slot: next}
	return plan, nil
}

// goOn inserts the schedule's next occurrence, or records that there is none.
func (s *Scheduler) goOn(ctx context.Context, tx Tx, job *Job, next *occurrence) error {
	if next != nil {
		if err := next.insertNext(ctx, tx); !errors.Is(err, errEnded) {
			return err
		}
	}
	return s.recordEnd(ctx, tx, job)
}

func (s *Scheduler) recordEnd(ctx context.Context, tx Tx, last *Job) error {
	by := By{Actor: s.name, Reason: "its last firing has come"}
	return by.record(ctx, tx, "end", Action{JobID: last.ID, Kind: last.Kind, Schedule: last.Schedule})
}

// nextRow copies what one occurrence hands to the next.
func nextRow(job *Job) jobRow {
	return jobRow{kind: job.Kind, state: Pending, args: string(job.Args), priority: job.Priority,
		group: text(job.Group), retry: retryText(job.Retry), labels: labelsText(job.Labels),
		schedule: job.Schedule, spec: job.Spec, zone: text(job.Zone)}
}

// coalesced names the firings after slot and not after until, which get no row
// of their own.
func (f firings) coalesced(slot, until time.Time) map[string]any {
	notes := make(map[string]any)
	first, ok := f.next(slot)
	if !ok || first.After(until) {
		return notes
	}
	n, last := 0, first
	for at := first; ok && !at.After(until) && n < maxCoalesced; at, ok = f.next(at) {
		n, last = n+1, at
	}
	notes["coalesced"], notes["coalesced_from"] = n, first
	if n == maxCoalesced {
		notes["coalesced"] = fmt.Sprintf("%d or more", n)
		if !f.to.IsZero() && f.to.Before(until) {
			until = f.to
		}
		if at, ok := f.spec.Prev(until.Add(1)); ok {
			last = at
		}
	}
	notes["coalesced_to"] = last
	return notes
}

// markBroken takes a schedule whose row can't be understood out of the way of
// the others, and says so on it.
func (s *Scheduler) markBroken(ctx context.Context, tx Tx, job *Job, cause error) error {
	_, err := tx.ExecContext(ctx, sqlPauseHead, job.seq, reasonBroken, s.safe(cause), nil)
	if err != nil {
		return err
	}
	s.log.ErrorContext(ctx, "rota: schedule is broken and paused; schedule it anew", "schedule", job.Schedule, "error", s.safe(cause))
	return moveUp(ctx, tx, job.Kind, job.Group)
}
