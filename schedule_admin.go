package rota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// What the program's declarations and people do to schedules: to the one row
// that a schedule is.

// Where an occurrence comes from, other than from its time.
const (
	originNow      = "now"
	originBackfill = "backfill"
)

const (
	sqlSetSlot = `UPDATE rota_jobs SET run_at = $2, scheduled_for = $2 WHERE seq = $1`

	sqlResumable = `SELECT ` + jobColumns + ` FROM rota_jobs
		WHERE resume_at IS NOT NULL AND state = 'paused' ORDER BY resume_at LIMIT $1`

	sqlResumeHead = `
		UPDATE rota_jobs SET state = 'pending', reason = NULL, error = NULL, resume_at = NULL,
			in_line = $2, rule = $3
		WHERE seq = $1`

	sqlFiringLives = `
		SELECT count(*) FROM rota_jobs
		WHERE schedule = $1 AND state IN ('pending', 'paused', 'running') AND seq <> $2 AND origin = ''`

	sqlSlotTaken = `
		SELECT state, coalesce(reason, '') FROM rota_jobs
		WHERE schedule = $1 AND scheduled_for = $2 AND origin <> 'now'`
)

// reconcile writes down what the program declares, in one transaction, and
// brings in order what has changed under the schedules that are stored.
func (t *term) reconcile(ctx context.Context) error {
	t.s.mu.RLock()
	declared := t.s.declared
	t.s.mu.RUnlock()
	return t.s.writer.doFenced(ctx, t.token, func(ctx context.Context, tx Tx) error {
		found, err := queryJobs(ctx, tx, sqlHeads)
		if err != nil {
			return err
		}
		now := time.Now()
		heads := make(map[string]*Job, len(found))
		for _, head := range found {
			if err := t.s.refresh(ctx, tx, head, now); err != nil {
				return fmt.Errorf("schedule %s: %w", head.Schedule, err)
			}
			heads[head.Schedule] = head
		}
		names := make(map[string]bool, len(declared))
		for i := range declared {
			d := &declared[i]
			names[d.name] = true
			err := d.upsert(ctx, tx, heads[d.name], now)
			if errors.Is(err, errEnded) { // the program goes on declaring what is over
				t.s.log.InfoContext(ctx, "rota: schedule has ended", "schedule", d.name)
				if err = nil; heads[d.name] != nil {
					err = t.s.recordEnd(ctx, tx, heads[d.name])
				}
			}
			if err != nil {
				return fmt.Errorf("schedule %s: %w", d.name, err)
			}
		}
		for _, head := range found {
			if names[head.Schedule] || !head.rule.Declared {
				continue
			}
			by := By{Actor: t.s.name, Reason: "the program does not declare it any more"}
			if err := removeHead(ctx, tx, head, by); err != nil {
				return err
			}
		}
		return nil
	})
}

// refresh looks whether a stored occurrence is still what its spec says. It is
// not when the zone's data have changed since (a new tzdata release), or when
// the row can't be understood.
func (s *Scheduler) refresh(ctx context.Context, tx Tx, head *Job, now time.Time) error {
	spec, err := head.parseSpec()
	if err != nil {
		if head.Reason == reasonBroken {
			return nil
		}
		if head.State != Paused { // else a declaration that mends it keeps the person's pause
			head.State, head.Reason = Paused, reasonBroken
		}
		return s.markBroken(ctx, tx, head, err)
	}
	slot := head.ScheduledFor
	if !slot.After(now) {
		return nil // it is due, whatever the zone says now
	}
	all := head.rule.firings(spec)
	// head was made when the firing before it had come.
	next, ok := all.next(head.CreatedAt)
	if at, valid := all.next(slot.Add(-1)); !ok || valid && at.Equal(slot) {
		return nil
	}
	if next, ok, err = all.unused(ctx, tx, head.Schedule, next); err != nil || !ok {
		return err
	}
	if _, err := tx.ExecContext(ctx, sqlSetSlot, head.seq, micros(next)); err != nil {
		return err
	}
	head.ScheduledFor, head.RunAt = next.UTC(), next.UTC()
	s.log.WarnContext(ctx, "rota: the time zone's data have changed; the schedule is moved", "schedule", head.Schedule, "from", slot, "to", next)
	by := By{Actor: s.name, Reason: "the time zone's data have changed"}
	data, _ := json.Marshal(map[string]time.Time{"from": slot, "to": next}) // two times
	return by.record(ctx, tx, "move", Action{Kind: head.Kind, Schedule: head.Schedule, Detail: string(data)})
}

// parseSpec reads the schedule's spec from its row. It fails with ErrSpec.
func (j *Job) parseSpec() (Spec, error) {
	if j.ruleErr != nil {
		return Spec{}, fmt.Errorf("%w: rule of schedule %s: %w", ErrSpec, j.Schedule, j.ruleErr)
	}
	return ParseSpec(j.Spec, SpecOptions{Zone: j.Zone, Seconds: j.rule.Seconds, Name: j.Schedule})
}

func deleteHead(ctx context.Context, tx Tx, head *Job) error {
	if _, err := tx.ExecContext(ctx, sqlDeleteHead, head.seq); err != nil {
		return err
	}
	return moveUp(ctx, tx, head.Kind, head.Group)
}

func removeHead(ctx context.Context, tx Tx, head *Job, by By) error {
	if err := deleteHead(ctx, tx, head); err != nil {
		return err
	}
	return by.record(ctx, tx, "unschedule", Action{Kind: head.Kind, Schedule: head.Schedule})
}

// Unschedule removes a schedule. Its running and ended occurrences stay.
func (s *Scheduler) Unschedule(ctx context.Context, name string, by By) error {
	return s.changeHead(ctx, "unschedule", name, func(ctx context.Context, tx Tx, head *Job) error {
		return removeHead(ctx, tx, head, by)
	})
}

// PauseSchedule stops a schedule's firings until ResumeSchedule or, if until is
// not zero, until that time, a firing at which is the first to run; also through
// restarts and new declarations of it. Pausing again changes the time. A broken
// schedule, which fires no more, can't be paused (ErrState).
func (s *Scheduler) PauseSchedule(ctx context.Context, name string, until time.Time, by By) error {
	return s.changeHead(ctx, "pause schedule", name, func(ctx context.Context, tx Tx, head *Job) error {
		if head.Reason == reasonBroken {
			return fmt.Errorf("%w: it is broken; schedule it anew: %s", ErrState, head.Error)
		}
		if _, err := tx.ExecContext(ctx, sqlPauseHead, head.seq, reasonPaused, nil, nullMicros(until)); err != nil {
			return err
		}
		if err := moveUp(ctx, tx, head.Kind, head.Group); err != nil {
			return err
		}
		a := Action{Kind: head.Kind, Schedule: name}
		if !until.IsZero() {
			a.Detail = detail("until", until)
		}
		return by.record(ctx, tx, "pause", a)
	})
}

// ResumeSchedule lets a paused schedule fire again, from now on: firings that
// came in the pause are recorded as skipped, with the reason "paused". It does
// nothing to a schedule that is not paused.
func (s *Scheduler) ResumeSchedule(ctx context.Context, name string, by By) error {
	return s.changeHead(ctx, "resume schedule", name, func(ctx context.Context, tx Tx, head *Job) error {
		if head.State != Paused {
			return nil
		}
		return resumeHead(ctx, tx, head, time.Now(), by)
	})
}

func resumeHead(ctx context.Context, tx Tx, head *Job, now time.Time, by By) error {
	if _, err := head.parseSpec(); err != nil {
		return fmt.Errorf("%w: it is broken; schedule it anew: %w", ErrState, err)
	}
	inLine := false
	if head.Group != "" {
		var err error
		if inLine, err = lineUp(ctx, tx, head.Kind, head.Group, micros(head.RunAt)); err != nil {
			return err
		}
	}
	head.rule.PausedTo = micros(now)
	rule, _ := json.Marshal(head.rule) // a struct of plain fields
	if _, err := tx.ExecContext(ctx, sqlResumeHead, head.seq, flag(inLine), string(rule)); err != nil {
		return err
	}
	return by.record(ctx, tx, "resume", Action{Kind: head.Kind, Schedule: head.Schedule})
}

// resumeDue ends the pauses whose time has come, and returns when the next one
// ends.
func (s *Scheduler) resumeDue(ctx context.Context, tx Tx, now time.Time) (next time.Time, err error) {
	const some = 100
	heads, err := queryJobs(ctx, tx, sqlResumable, some)
	if err != nil {
		return farFuture, err
	}
	for _, head := range heads {
		if head.resumeAt.After(now) {
			return head.resumeAt, nil
		}
		if _, err := head.parseSpec(); err != nil { // its own trouble, not that of the others
			if err := s.markBroken(ctx, tx, head, err); err != nil {
				return farFuture, err
			}
			continue
		}
		if err := resumeHead(ctx, tx, head, head.resumeAt, By{Actor: s.name, Reason: "the time of its pause is over"}); err != nil {
			return farFuture, err
		}
	}
	if len(heads) == some {
		return now, nil
	}
	return farFuture, nil
}

// RunNow enqueues an occurrence of the schedule for this instant. The schedule's
// own next firing stays as it is. Its Overlap policy counts: with OverlapWait
// the occurrence waits for the one that is not done, with OverlapSkip it is
// refused then (ErrState).
func (s *Scheduler) RunNow(ctx context.Context, name string, by By) (Enqueued, error) {
	var answer Enqueued
	err := s.changeHead(ctx, "run now", name, func(ctx context.Context, tx Tx, head *Job) error {
		if err := mayAdd(ctx, tx, head); err != nil {
			return err
		}
		id, err := addOccurrence(ctx, tx, head, time.Now(), originNow)
		if err != nil {
			return err
		}
		answer = Enqueued{ID: id}
		return by.record(ctx, tx, "run now", Action{JobID: id, Kind: head.Kind, Schedule: name})
	})
	if err != nil {
		return Enqueued{}, err
	}
	return answer, nil
}

// mayAdd asks whether a person may add occurrences to the schedule now: not
// beside one that must have no other beside it.
func mayAdd(ctx context.Context, tx Tx, head *Job) error {
	if head.rule.Overlap != OverlapSkip {
		return nil
	}
	var living int
	if err := tx.QueryRowContext(ctx, sqlFiringLives, head.Schedule, head.seq).Scan(&living); err != nil {
		return err
	}
	if living > 0 {
		return fmt.Errorf("%w: its last firing is not done, and its overlap policy is to skip", ErrState)
	}
	return nil
}

// addOccurrence enqueues an occurrence beside the schedule's own. It is due now,
// whatever instant it is meant for.
func addOccurrence(ctx context.Context, tx Tx, head *Job, slot time.Time, origin string) (id string, err error) {
	if id, err = newID(); err != nil {
		return "", err
	}
	now := micros(time.Now())
	row := nextRow(head)
	row.id, row.idempotencyKey, row.createdAt, row.runAt, row.scheduledFor = id, id, now, now, micros(slot)
	row.spec, row.zone, row.origin = nil, nil, origin
	if row.group == nil && head.rule.Overlap == OverlapSkip {
		row.group = ownGroup(head.Schedule) // firings are skipped meanwhile; among themselves these wait
	}
	_, err = row.insert(ctx, tx)
	return id, err
}

// Backfilled is what Backfill did about one instant.
type Backfilled struct {
	At      time.Time
	ID      string // of the job; "" if it was refused, or in a preview
	Refused string // why there is none: "it is succeeded"; "" if it is (or would be) enqueued
}

// BackfillOptions says which firings are made up.
type BackfillOptions struct {
	By

	// From and To bound the instants, both included. To must not lie in the
	// future: what is to come fires by itself.
	From, To time.Time

	// Preview changes nothing and answers what would be done.
	Preview bool
}

const maxBackfill = 10_000

// Backfill enqueues an occurrence for each instant in the past at which the
// schedule fires by its present spec and which has not run: each once. One that
// has a job already is refused and named, unless that firing was skipped. More
// than 10,000 instants are refused as a whole (ErrInvalid). The schedule's own
// next firing stays as it is; its Overlap policy counts as in RunNow.
func (s *Scheduler) Backfill(ctx context.Context, name string, o BackfillOptions) ([]Backfilled, error) {
	var answers []Backfilled
	err := s.changeHead(ctx, "backfill", name, func(ctx context.Context, tx Tx, head *Job) error {
		answers = nil
		now := time.Now()
		if o.To.After(now) || o.To.Before(o.From) || o.From.IsZero() {
			return fmt.Errorf("%w: from %v to %v: the range must lie in the past", ErrInvalid, o.From, o.To)
		}
		spec, err := head.parseSpec()
		if err != nil {
			return err
		}
		if err := mayAdd(ctx, tx, head); err != nil {
			return err
		}
		instants := head.rule.firings(spec).between(o.From, o.To, maxBackfill+1)
		if len(instants) > maxBackfill {
			return fmt.Errorf("%w: more than %d firings from %v to %v; choose a shorter range", ErrInvalid, maxBackfill, o.From, o.To)
		}
		for _, at := range instants {
			b, err := backfillOne(ctx, tx, head, at, o.Preview)
			if err != nil {
				return err
			}
			answers = append(answers, b)
		}
		if o.Preview {
			return nil
		}
		return o.record(ctx, tx, "backfill", Action{Kind: head.Kind, Schedule: name,
			Detail: detail("range", []time.Time{o.From.UTC(), o.To.UTC()})})
	})
	if err != nil {
		return nil, err
	}
	return answers, nil
}

func backfillOne(ctx context.Context, tx Tx, head *Job, at time.Time, preview bool) (Backfilled, error) {
	b := Backfilled{At: at}
	if err := eachRow(ctx, tx, sqlSlotTaken, []any{head.Schedule, micros(at)}, func(scan func(...any) error) error {
		var state State
		var reason string
		err := scan(&state, &reason)
		skipped := state == Cancelled && reason != reasonCancelled
		if !skipped {
			b.Refused = "it is " + string(state)
		}
		return err
	}); err != nil || preview || b.Refused != "" {
		return b, err
	}
	var err error
	b.ID, err = addOccurrence(ctx, tx, head, at, originBackfill)
	return b, err
}

// changeHead does something to a schedule's pending occurrence.
func (s *Scheduler) changeHead(ctx context.Context, what, name string, change func(context.Context, Tx, *Job) error) error {
	err := s.writer.do(ctx, func(ctx context.Context, tx Tx) error {
		head, err := findHead(ctx, tx, name)
		if err == nil && head == nil {
			err = ErrNotFound
		}
		if err != nil {
			return err
		}
		return change(ctx, tx, head)
	})
	if err != nil {
		return fmt.Errorf("rota: %s %s: %w", what, name, err)
	}
	return nil
}
