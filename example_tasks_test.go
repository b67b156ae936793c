package rota_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// One example for each task that a user has. They open a database in memory,
// which ends with them; a program gives the path of its file.

// quiet keeps the log out of what an example prints.
var quiet = rota.Config{Logger: slog.New(slog.DiscardHandler)}

// The order and the job that sends its invoice are stored by one transaction:
// both are there, or neither is.
func ExampleKind_EnqueueTx() {
	s, err := rota.Open(":memory:", quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	rota.Handle(s, SendInvoice, func(_ context.Context, _ *rota.Job, inv Invoice) error {
		fmt.Println("invoice", inv.ID, "sent")
		return nil
	}, rota.Policy{})
	ctx := context.Background()
	if _, err := s.DB().ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, cents INTEGER)"); err != nil {
		log.Fatal(err)
	}

	order := func(id, cents int) error {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after Commit
		if _, err := SendInvoice.EnqueueTx(ctx, s, tx, Invoice{ID: id}, rota.EnqueueOptions{}); err != nil {
			return err
		}
		if cents <= 0 {
			return fmt.Errorf("order %d: no price", id)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?, ?)", id, cents); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(order(1, 995))
	fmt.Println(order(2, 0))

	if _, err := s.RunDue(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// <nil>
	// order 2: no price
	// invoice 1 sent
}

// The handler books in the database that holds the jobs, and ends its job in
// the same transaction. What fails after the booking undoes it, so the second
// attempt does not book twice.
func ExampleJob_CompleteTx() {
	s, err := rota.Open(":memory:", quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	if _, err := s.DB().ExecContext(ctx, "CREATE TABLE balance (cents INTEGER); INSERT INTO balance VALUES (0)"); err != nil {
		log.Fatal(err)
	}

	const addCredit rota.Kind[int] = "credit.add"
	rota.Handle(s, addCredit, func(ctx context.Context, job *rota.Job, cents int) error {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "UPDATE balance SET cents = cents + ?", cents); err != nil {
			return err
		}
		if job.Attempt == 1 {
			return rota.RetryAfter(0, errors.New("the disk is full"))
		}
		if err := job.CompleteTx(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}, rota.Policy{})

	if _, err := addCredit.Enqueue(ctx, s, 500, rota.EnqueueOptions{}); err != nil {
		log.Fatal(err)
	}
	attempts, err := s.RunDue(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attempts {
		fmt.Printf("attempt %d: %s\n", a.Number, a.Outcome)
	}
	var cents int
	if err := s.DB().QueryRowContext(ctx, "SELECT cents FROM balance").Scan(&cents); err != nil {
		log.Fatal(err)
	}
	fmt.Println("balance:", cents)
	// Output:
	// attempt 1: retry
	// attempt 2: succeeded
	// balance: 500
}

// A schedule belongs to the program: it is written down when the program runs,
// moved when its declaration has changed, and removed when it is gone. Its next
// firing is a job like any other.
func ExampleKind_Declare() {
	s, err := rota.Open(":memory:", quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	const cleanUp rota.Kind[struct{}] = "sessions.clean"
	rota.Handle(s, cleanUp, func(_ context.Context, job *rota.Job, _ struct{}) error {
		fmt.Println("cleaning up for", job.Schedule)
		return nil
	}, rota.Policy{})
	err = cleanUp.Declare(s, rota.Schedule{
		Name:   "nightly",
		Spec:   "30 3 * * *",
		Zone:   "Europe/Berlin",
		Missed: rota.MissedOnce, // after a week's pause: one late run, then on from now
	}, struct{}{})
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	if _, err := s.RunDue(ctx); err != nil { // writes the schedule down; nothing is due
		log.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		log.Fatal(err)
	}
	schedules, err := s.Schedules(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, next := range schedules {
		fmt.Println(next.Schedule, next.State, "at", next.RunAt.In(berlin).Format(time.TimeOnly))
	}
	if _, err := s.RunNow(ctx, "nightly", rota.By{Actor: "ann"}); err != nil { // besides its firings
		log.Fatal(err)
	}
	if _, err := s.RunDue(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// nightly pending at 03:30:00
	// cleaning up for nightly
}

// What is to be done is found from the program's own tables: what is not yet
// sent. However often the sweep is repeated, and however long it was not, each
// invoice has one job at a time.
func ExampleKind_Sweep() {
	s, err := rota.Open(":memory:", quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	_, err = s.DB().ExecContext(ctx, `
		CREATE TABLE invoices (id INTEGER PRIMARY KEY, sent_at TEXT);
		INSERT INTO invoices VALUES (1, '2026-01-31'), (2, NULL), (3, NULL)`)
	if err != nil {
		log.Fatal(err)
	}
	rota.Handle(s, SendInvoice, func(ctx context.Context, job *rota.Job, inv Invoice) error {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "UPDATE invoices SET sent_at = date() WHERE id = ?", inv.ID); err != nil {
			return err
		}
		if err := job.CompleteTx(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}, rota.Policy{})

	sweep := func() {
		n, err := SendInvoice.Sweep(ctx, s, "SELECT id, json_object('ID', id) FROM invoices WHERE sent_at IS NULL")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("enqueued:", n)
	}
	sweep()
	sweep() // the two have a job already
	attempts, err := s.RunDue(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("sent:", len(attempts))
	sweep() // nothing is left to do
	// Output:
	// enqueued: 2
	// enqueued: 0
	// sent: 2
	// enqueued: 0
}

// A response says by its status whether trying again may help, and when.
func ExampleHTTPError() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/overloaded":
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/broken":
			w.WriteHeader(http.StatusInternalServerError)
		case "/rejected":
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	defer server.Close()
	s, err := rota.Open(":memory:", quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	const post rota.Kind[string] = "http.post"
	rota.Handle(s, post, func(ctx context.Context, job *rota.Job, path string) error {
		req, err := http.NewRequestWithContext(ctx, "POST", server.URL+path, nil)
		if err != nil {
			return rota.Permanent(err)
		}
		req.Header.Set("Idempotency-Key", job.IdempotencyKey) // the same for every attempt
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err // a timeout or a cut connection counts as unknown
		}
		defer resp.Body.Close()
		return rota.HTTPError(resp)
	}, rota.Policy{MaxRunning: 1}) // so that they end in order

	ctx := context.Background()
	for _, path := range []string{"/accepted", "/overloaded", "/broken", "/rejected"} {
		if _, err := post.Enqueue(ctx, s, path, rota.EnqueueOptions{}); err != nil {
			log.Fatal(err)
		}
	}
	attempts, err := s.RunDue(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attempts {
		fmt.Printf("%s: %s, job is %s", a.Class, a.Outcome, a.Decision)
		if a.Decision == rota.Pending {
			fmt.Printf(" for %v to %v, at most %d attempts", a.DelayMin, a.DelayMax, a.Bound)
		}
		fmt.Println()
	}
	// Output:
	// ok: succeeded, job is succeeded
	// http_503: retry, job is pending for 2m0s to 2m0s, at most 10 attempts
	// http_500: retry, job is pending for 10s to 12s, at most 3 attempts
	// http_422: failed, job is dead
}

// An operator looks at what has died, reads the evidence, mends the cause and
// has it done again: by a new job, with the old one's idempotency key.
func ExampleScheduler_Replay() {
	s, err := rota.Open(":memory:", quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	address := ""
	rota.Handle(s, SendInvoice, func(_ context.Context, job *rota.Job, inv Invoice) error {
		if address == "" {
			return rota.Permanent(fmt.Errorf("customer of invoice %d has no address", inv.ID))
		}
		job.Note("provider_id", "msg-1")
		return nil
	}, rota.Policy{})
	ctx := context.Background()
	if _, err := SendInvoice.Enqueue(ctx, s, Invoice{ID: 42}, rota.EnqueueOptions{}); err != nil {
		log.Fatal(err)
	}
	if _, err := s.RunDue(ctx); err != nil {
		log.Fatal(err)
	}

	address = "ann@example.com"
	for job, err := range s.Jobs(ctx, rota.Filter{State: rota.Dead}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s is %s (%s)\n", job.Kind, job.Args, job.State, job.Reason)
		attempts, err := s.Attempts(ctx, job.ID)
		if err != nil {
			log.Fatal(err)
		}
		for _, a := range attempts {
			fmt.Printf("  attempt %d: %s: %s\n", a.Number, a.Outcome, a.Error)
		}
		why := rota.By{Actor: "ben", Reason: "the address has been added"}
		if _, err := s.Replay(ctx, job.ID, rota.ReplayOptions{By: why}); err != nil {
			log.Fatal(err)
		}
	}
	attempts, err := s.RunDue(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attempts {
		fmt.Printf("replayed: %s %s\n", a.Outcome, a.Note)
	}
	actions, err := s.Actions(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range actions {
		fmt.Printf("%s did %s: %s\n", a.Actor, a.Action, a.Reason)
	}
	// Output:
	// invoice.send {"ID":42} is dead (permanent)
	//   attempt 1: failed: customer of invoice 42 has no address
	// replayed: succeeded {"provider_id":"msg-1"}
	// ben did replay: the address has been added
}

// TestTheREADMEShowsWhatCompiles compares the README's lines with those of the
// example, which compiles and runs.
func TestTheREADMEShowsWhatCompiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```go\n")
	shown, _, closed := strings.Cut(rest, "\n```")
	if !found || !closed {
		t.Fatal("the README shows no Go")
	}
	body := strings.ReplaceAll(string(example), "\n\t", "\n") // the example's lines stand in a function
	body = strings.Replace(body, "rota.Open(path,", `rota.Open("app.db",`, 1)
	for part := range strings.SplitSeq(shown, "\n\n") {
		if !strings.Contains(body, part) {
			t.Errorf("example_test.go does not have the README's\n%s", part)
		}
	}
}
