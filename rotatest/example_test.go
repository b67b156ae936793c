package rotatest_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-f4ae5dd2/rota"
	"github.com/seed-f4ae5dd2/rota/rotatest"
)

// Tests as a program that uses Rota would have them. The first is also in the
// package's documentation.

// The program: it sends invoices by mail and makes a report each month.

type Invoice struct {
	ID    int
	Lines []string `json:",omitempty"`
}

const (
	SendInvoice rota.Kind[Invoice]  = "invoice.send"
	MakeReport  rota.Kind[struct{}] = "report.make"
)

// mailServer is the test's stand-in for the other side.
type mailServer struct {
	refusals int           // refuse that many, then accept
	delay    time.Duration // answer that late

	mu   sync.Mutex
	sent []int
}

func (m *mailServer) send(ctx context.Context, inv Invoice) error {
	select {
	case <-time.After(m.delay):
	case <-ctx.Done():
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusals > 0 {
		m.refusals--
		return errors.New("421 try again later")
	}
	m.sent = append(m.sent, inv.ID)
	return nil
}

func handleInvoices(s *rota.Scheduler, mail *mailServer) {
	rota.Handle(s, SendInvoice, func(ctx context.Context, _ *rota.Job, inv Invoice) error {
		return mail.send(ctx, inv)
	}, rota.Policy{Timeout: 30 * time.Second, Retry: rota.Retry{Base: time.Hour, Cap: 24 * time.Hour, MaxAttempts: 3}})
}

// The tests.

func TestARefusedInvoiceIsSentAnHourLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rotatest.Open(t) // inside the bubble
		mail := &mailServer{refusals: 1}
		handleInvoices(s, mail)
		enqueue(t, s, SendInvoice, Invoice{ID: 42})

		first := rotatest.Drain(t, s)[0]
		if first.Outcome != rota.OutcomeRetry {
			t.Fatalf("the refused attempt ended as %s", first.Outcome)
		}
		wait := time.Until(first.NextAt)
		if wait < time.Hour || wait > 72*time.Minute {
			t.Errorf("the retry comes after %v, not after an hour and up to a fifth more", wait)
		}
		time.Sleep(wait) // an hour, at once
		rotatest.Drain(t, s)

		rotatest.RequireNone(t, s, SendInvoice)
		if len(mail.sent) != 1 {
			t.Errorf("%d mails were sent", len(mail.sent))
		}
	})
}

func TestAReportIsMadeOnTheFirstOfEachMonth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rotatest.Open(t)
		var made []string
		rota.Handle(s, MakeReport, func(_ context.Context, job *rota.Job, _ struct{}) error {
			made = append(made, job.ScheduledFor.Format(time.DateOnly))
			return nil
		}, rota.Policy{})
		err := MakeReport.Declare(s, rota.Schedule{Name: "monthly", Spec: "0 6 1 * *", Zone: "Europe/Berlin"}, struct{}{})
		if err != nil {
			t.Fatal(err)
		}

		rotatest.Drain(t, s) // writes the schedule down; nothing is due
		for range 3 {
			next := rotatest.RequireEnqueued(t, s, MakeReport, struct{}{})
			time.Sleep(time.Until(next.RunAt)) // to the next month
			rotatest.Drain(t, s)
		}

		// A bubble's clock begins at midnight of 2000-01-01.
		if want := []string{"2000-01-01", "2000-02-01", "2000-03-01"}; !slices.Equal(made, want) {
			t.Errorf("reports were made for %v, not %v", made, want)
		}
	})
}

func TestASlowMailServerMakesTheOutcomeUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rotatest.Open(t)
		handleInvoices(s, &mailServer{delay: time.Minute})
		enqueue(t, s, SendInvoice, Invoice{ID: 42})

		attempt := rotatest.Drain(t, s)[0] // 30 seconds, at once
		if attempt.Outcome != rota.OutcomeUnknown || attempt.Class != "timeout" {
			t.Errorf("the attempt ended as %s (%s)", attempt.Outcome, attempt.Class)
		}
		if took := attempt.FinishedAt.Sub(attempt.ClaimedAt); took != 30*time.Second {
			t.Errorf("it was given %v", took)
		}
	})
}

func TestInvoicesOfOneCustomerAreSentOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rotatest.Open(t)
		mail := &mailServer{delay: 10 * time.Second}
		handleInvoices(s, mail)
		start := time.Now()

		var requests sync.WaitGroup // as a web server's would be: at once
		for id := range 20 {
			requests.Go(func() {
				_, err := SendInvoice.Enqueue(t.Context(), s, Invoice{ID: id}, rota.EnqueueOptions{Group: "customer 7"})
				if err != nil {
					t.Errorf("invoice %d: %v", id, err) // not Fatal: this is not the test's goroutine
				}
			})
		}
		requests.Wait()
		rotatest.Drain(t, s)

		if len(mail.sent) != 20 {
			t.Errorf("%d mails were sent", len(mail.sent))
		}
		if took := time.Since(start); took != 200*time.Second {
			t.Errorf("they took %v, not 20 times 10 seconds", took)
		}
	})
}

func TestAMonthOfNightsIsALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rotatest.Open(t)
		nights := 0
		rota.Handle(s, MakeReport, func(context.Context, *rota.Job, struct{}) error {
			nights++
			return nil
		}, rota.Policy{})
		err := MakeReport.Schedule(t.Context(), s, rota.Schedule{Name: "nightly", Spec: "0 3 * * *"}, struct{}{})
		if err != nil {
			t.Fatal(err)
		}

		for end := time.Now().AddDate(0, 1, 0); time.Now().Before(end); {
			time.Sleep(24 * time.Hour)
			rotatest.Drain(t, s)
		}
		if nights != 31 {
			t.Errorf("%d nights in January", nights)
		}
	})
}

func TestAnUnreadableInvoiceIsDeadWithItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rotatest.Open(t)
		handleInvoices(s, &mailServer{})
		enqueue(t, s, rota.Kind[json.RawMessage](SendInvoice), json.RawMessage(`{"ID": "forty-two"}`))

		attempt := rotatest.Drain(t, s)[0]
		if attempt.Decision != rota.Dead || attempt.Reason != "undecodable" || !strings.Contains(attempt.Error, "ID") {
			t.Errorf("the job is %s (%s): %s", attempt.Decision, attempt.Reason, attempt.Error)
		}
	})
}

func enqueue[T any](t *testing.T, s *rota.Scheduler, kind rota.Kind[T], args T) {
	t.Helper()
	if _, err := kind.Enqueue(t.Context(), s, args, rota.EnqueueOptions{}); err != nil {
		t.Fatal(err)
	}
}
