// Package rotatest helps a program that uses Rota to test what it enqueues and
// what its handlers do, on a real file and without waiting.
//
// [Open] gives a test its own scheduler, [Drain] does what is due, and
// [RequireEnqueued] and [RequireNone] say what must be there and what must not.
//
// # Time
//
// Rota has no clock of its own to replace. Inside a bubble of
// [testing/synctest] the time package's clock stands still while anything is at
// work and jumps ahead when all of it waits, so a retry that comes an hour later
// is tested in milliseconds:
//
//	func TestARefusedInvoiceIsSentAnHourLater(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			s := rotatest.Open(t) // inside the bubble
//			mail := &mailServer{refusals: 1}
//			handleInvoices(s, mail)
//			SendInvoice.Enqueue(t.Context(), s, Invoice{ID: 42}, rota.EnqueueOptions{})
//
//			first := rotatest.Drain(t, s)[0]
//			if first.Outcome != rota.OutcomeRetry {
//				t.Fatalf("the refused attempt ended as %s", first.Outcome)
//			}
//			time.Sleep(time.Until(first.NextAt)) // an hour, at once
//			rotatest.Drain(t, s)
//
//			rotatest.RequireNone(t, s, SendInvoice)
//			if len(mail.sent) != 1 {
//				t.Errorf("%d mails were sent", len(mail.sent))
//			}
//		})
//	}
//
// What a bubble asks for: Open must be called inside it, with the bubble's own
// t, since the scheduler's goroutines and channels belong where they were made;
// and every goroutine must have ended when the test does, which Open's cleanup
// sees to.
//
// A month is a loop of Sleep and Drain. [rota.Scheduler.Run] works in a bubble
// as well, but it looks for other processes' commits 20 times a second and
// renews its lease each few seconds, which a simulated month has many of: give
// Open a Config with PollInterval -1 and a LeaseTTL of an hour, say. A job of
// EnqueueTx is then seen within that hour.
package rotatest

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// Open opens a scheduler on a new temporary file and closes it when the test
// ends. The test fails if that can't be done, or if a handler is still at work
// then although its context has ended: it would go on into the next test.
//
// It takes a Config if the zero one will not do. Where that leaves them open,
// the Logger writes warnings and errors to the test's log, which shows them if
// the test fails, and the Durability is DurabilityNormal, as no test survives a
// power cut.
func Open(t testing.TB, config ...rota.Config) *rota.Scheduler {
	t.Helper()
	var cfg rota.Config
	switch len(config) {
	case 0:
	case 1:
		cfg = config[0]
	default:
		t.Fatalf("rotatest: Open takes one Config at most, not %d", len(config))
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if cfg.Durability == "" {
		cfg.Durability = rota.DurabilityNormal
	}
	s, err := rota.Open(filepath.Join(t.TempDir(), "rota.db"), cfg)
	if err != nil {
		t.Fatalf("rotatest: %v", err)
	}
	t.Cleanup(func() {
		if n := hung(s); n > 0 {
			t.Errorf("rotatest: handlers are still at work although their contexts have ended: %d", n)
		}
		if err := s.Close(); err != nil {
			t.Errorf("rotatest: close: %v", err)
		}
	})
	return s
}

// hung counts the handlers that ignore their ended context, once those that are
// on their way out have had a moment to leave.
func hung(s *rota.Scheduler) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for last := 0; ; {
		stats, err := s.Stats(ctx)
		if err != nil {
			return last // the test has closed it, or the time is up
		}
		if last = stats.Hung; last == 0 {
			return 0
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last
		}
	}
}

// Drain runs what is due, and what that makes due, until nothing is, and
// returns the attempts that were made in the order of their ends. It does not
// wait for a retry or a schedule that comes later: sleep until then, in a
// bubble of testing/synctest, and call Drain again. Schedules that the program
// declares are written down before anything runs.
//
// A handler that fails does not fail the test: that may be what is tested. Its
// attempt says how it went, with the stack of a panic, and the test's log shows
// it. Nor does a due job that can't run: a test of the order need not handle the
// mails that it leads to. The log names such jobs with the reason: no handler
// for their kind, a pause, a rate, a group whose first job waits for its retry.
//
// The test fails at once if the work could not be done: what Handle or Declare
// found wrong, a Run at work in this scheduler or another, trouble with the
// file, or a handler that ignored the end of its context.
func Drain(t testing.TB, s *rota.Scheduler) []rota.Attempt {
	t.Helper()
	attempts, err := s.RunDue(t.Context())
	for _, a := range attempts {
		if a.Outcome != rota.OutcomeSucceeded {
			t.Log("rotatest: " + attemptText(a))
		}
	}
	if err != nil {
		t.Fatalf("rotatest: drain: %v", err)
	}
	left, err := leftText(t.Context(), s)
	if err != nil {
		t.Fatalf("rotatest: drain: %v", err)
	}
	if left != "" {
		t.Log("rotatest: drain left due jobs alone: " + left)
	}
	return attempts
}

// attemptText is the evidence of an attempt that did not succeed.
func attemptText(a rota.Attempt) string {
	text := fmt.Sprintf("%s: attempt %d of job %s: %s (%s): job is %s (%s)",
		a.Kind, a.Number, a.JobID, a.Outcome, a.Class, a.Decision, a.Reason)
	if !a.NextAt.IsZero() {
		text += " until " + a.NextAt.Format(time.RFC3339)
	}
	if a.Error != "" {
		text += ": " + a.Error
	}
	if a.Stack != "" { // one line in the evidence
		text += "\n" + strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(a.Stack)
	}
	return text
}

// leftText counts the due jobs by kind and by why they do not run.
func leftText(ctx context.Context, s *rota.Scheduler) (string, error) {
	stats, err := s.Stats(ctx)
	if err != nil || stats.Overdue == 0 {
		return "", err
	}
	type group struct{ kind, key string }
	var due []*rota.Job
	heldUp := make(map[group]bool) // by a job that has begun and waits for its retry
	for job, err := range s.Jobs(ctx, rota.Filter{State: rota.Pending}) {
		switch {
		case err != nil:
			return "", err
		case !job.RunAt.After(stats.At):
			due = append(due, job)
		case job.Attempt > 0 && job.Group != "":
			heldUp[group{job.Kind, job.Group}] = true
		}
	}
	counts := make(map[string]int)
	for _, job := range due {
		why := "the kind has reached its rate"
		switch {
		case stats.Unclaimable[job.Kind] > 0:
			why = "this scheduler has no handler for the kind"
		case slices.Contains(stats.Paused, job.Kind) || slices.Contains(stats.Paused, "*"):
			why = "the kind is paused"
		case heldUp[group{job.Kind, job.Group}]:
			why = fmt.Sprintf("the first of group %q waits", job.Group)
		}
		counts[fmt.Sprintf("%s (%s)", job.Kind, why)]++
	}
	return countsText(counts), nil
}
