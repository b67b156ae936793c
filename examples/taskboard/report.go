package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// invited is what came of a guest's invitation.
type invited struct {
	guest
	job        *rota.Job
	evidence   []rota.Attempt
	inMailbox  int
	recognised int // deliveries of a message that was there already
}

func introduce(out io.Writer, guests []guest, speed float64) {
	fmt.Fprintln(out, "Taskboard invites by mail. Each of its guests shows one way in which that can go:")
	for _, g := range guests {
		fmt.Fprintf(out, "  %-6s %s\n", g.name, g.story)
	}
	fmt.Fprintln(out, "\nDelay after failure n: 5 s × 2^n, at most 1 h, plus a whole 0 to 9 s. At most 8 attempts.")
	if speed != 1 {
		fmt.Fprintf(out, "This run is %g times as fast, and without the 0 to 9 s: those are whole seconds, which\n"+
			"can't be made shorter. What the delay is at -speed 1 stands in brackets.\n", speed)
	}
	fmt.Fprintf(out, "\n%7s  %-6s %-7s  %-9s %-9s %-9s  %-22s  %s\n",
		"time", "guest", "attempt", "outcome", "class", "why", "next try in", "what was said")
}

// follow prints each attempt when it is closed, and returns when every job has
// ended. It reads the evidence, as any other process could.
func follow(ctx context.Context, out io.Writer, s *rota.Scheduler, ids []string, speed float64) error {
	often := max(schedule(speed).Base/10, 20*time.Millisecond)
	began := time.Now()
	printed := make(map[string]int)
	look := time.NewTimer(0)
	defer look.Stop()
	for waiting := slices.Clone(ids); len(waiting) > 0; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
		}
		var news []line
		var still []string
		next := time.Now().Add(time.Minute)
		for _, id := range waiting {
			job, err := s.Job(ctx, id)
			if err != nil {
				return err
			}
			evidence, err := s.Attempts(ctx, id) // after the job: if that has ended, none is missing
			if err != nil {
				return err
			}
			for _, a := range evidence[printed[id]:] {
				if !a.FinishedAt.IsZero() {
					news = append(news, line{job.Labels["guest"], a})
					printed[id]++
				}
			}
			if !job.State.Terminal() {
				still = append(still, id)
				if job.RunAt.Before(next) { // nothing happens to it earlier
					next = job.RunAt
				}
			}
		}
		slices.SortStableFunc(news, func(a, b line) int { return a.FinishedAt.Compare(b.FinishedAt) })
		for _, l := range news {
			l.print(out, l.FinishedAt.Sub(began), speed)
		}
		waiting = still
		look.Reset(max(time.Until(next), often))
	}
	return nil
}

// line is what is printed of an attempt.
type line struct {
	guest string
	rota.Attempt
}

func (l line) print(out io.Writer, at time.Duration, speed float64) {
	next := "never"
	switch {
	case l.Outcome == rota.OutcomeSucceeded:
		next = "-"
	case !l.NextAt.IsZero():
		delay := l.NextAt.Sub(l.FinishedAt)
		next = delay.Round(time.Millisecond).String()
		if speed != 1 {
			next += fmt.Sprintf(" (%.0f s)", delay.Seconds()*speed)
		}
	}
	var note struct{ Reply string }
	_ = json.Unmarshal(l.Note, &note) // without a note there is no reply to show
	fmt.Fprintf(out, "%6.2fs  %-6s %d of %-2d  %-9s %-9s %-9s  %-22s  %s\n", at.Seconds(), l.guest,
		l.Number, cmp.Or(l.Bound, schedule(speed).MaxAttempts), l.Outcome, l.Class, l.Reason, next, cmp.Or(l.Error, note.Reply))
}

// gather reads what came of all invitations, from the evidence and from the
// server.
func gather(ctx context.Context, s *rota.Scheduler, server *server, guests []guest, ids []string) ([]invited, error) {
	all := make([]invited, len(guests))
	for i, g := range guests {
		in := invited{guest: g}
		var err error
		if in.job, err = s.Job(ctx, ids[i]); err != nil {
			return nil, err
		}
		if in.evidence, err = s.Attempts(ctx, ids[i]); err != nil {
			return nil, err
		}
		in.inMailbox, in.recognised = server.mailbox(g.address())
		all[i] = in
	}
	return all, nil
}

// report prints the end of it all, and returns what is not as it should be.
func report(out io.Writer, all []invited, policy rota.Retry) error {
	fmt.Fprintln(out, "\nIn the end:")
	var wrong []error
	for _, in := range all {
		mails := fmt.Sprintf("%d mail in the mailbox", in.inMailbox)
		if in.recognised > 0 {
			mails += fmt.Sprintf("; %d more delivery was recognised by its Message-ID and left out", in.recognised)
		}
		fmt.Fprintf(out, "  %-6s %-9s (%s) after %d of %d attempts; %s\n",
			in.name, in.job.State, in.job.Reason, len(in.evidence), policy.MaxAttempts, mails)
		if err := in.check(policy); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", in.name, err))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("not as it should be:\n%w", err)
	}
	fmt.Fprintln(out, "\nAll of it is as it should be: every mail that could be delivered was, none of them twice,")
	fmt.Fprintln(out, "and every delay lay in the schedule's range.")
	return nil
}

// check compares with what the guest's story promises, and every delay with
// the policy.
func (in invited) check(policy rota.Retry) error {
	var wrong []error
	expect := func(ok bool, what string, got, want any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf("%s: got %v, want %v", what, got, want))
		}
	}
	expect(in.job.State == in.state, "state", in.job.State, in.state)
	expect(in.job.Reason == in.reason, "reason", in.job.Reason, in.reason)
	expect(len(in.evidence) == in.attempts, "attempts", len(in.evidence), in.attempts)
	expect(in.inMailbox == in.delivered, "mails", in.inMailbox, in.delivered)
	expect(in.recognised == in.duplicates, "duplicates", in.recognised, in.duplicates)
	for i, a := range in.evidence {
		if i == len(in.evidence)-1 {
			expect(a.NextAt.IsZero(), "next try after the last attempt", a.NextAt, "none")
			break
		}
		// Times are stored in microseconds.
		delay, us := a.NextAt.Sub(a.FinishedAt), time.Microsecond
		shortest, longest := policy.Range(a.Number)
		expect(delay >= shortest-us && delay <= longest+us, fmt.Sprintf("delay after attempt %d", a.Number),
			delay, fmt.Sprintf("%v to %v", shortest, longest))
		began := in.evidence[i+1].ClaimedAt
		expect(!began.Before(a.NextAt), fmt.Sprintf("start of attempt %d", a.Number+1), began, "not before "+a.NextAt.String())
	}
	return errors.Join(wrong...)
}
