package rotatest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-f4ae5dd2/rota"
	"github.com/seed-f4ae5dd2/rota/rotatest"
)

// recorder is a testing.TB that keeps what a test did to it, so that a failure
// can be what is expected. Where a test lives is the real one's matter.
type recorder struct {
	testing.TB
	mu       sync.Mutex // guards all below
	log      bytes.Buffer
	failed   bool
	cleanups []func()
}

// record runs f as a test and its cleanups after it.
func record(t *testing.T, f func(t testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	r.run(func() { f(r) })
	for _, cleanup := range slices.Backward(r.cleanups) {
		r.run(cleanup)
	}
	return r
}

// run calls f in a goroutine of its own, which Fatalf ends.
func (r *recorder) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

func (r *recorder) Helper()           {}
func (r *recorder) Output() io.Writer { return r }
func (r *recorder) Log(args ...any)   { fmt.Fprintln(r, args...) }
func (r *recorder) Cleanup(f func())  { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	fmt.Fprintf(r, format+"\n", args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// mustFail wants a failure that says each of these.
func (r *recorder) mustFail(t *testing.T, says ...string) {
	t.Helper()
	if !r.failed {
		t.Errorf("it did not fail; log:\n%s", r.text())
	}
	for _, want := range says {
		if !strings.Contains(r.text(), want) {
			t.Errorf("it does not say %q:\n%s", want, r.text())
		}
	}
}

func (r *recorder) mustPass(t *testing.T) {
	t.Helper()
	if r.failed {
		t.Errorf("it failed:\n%s", r.text())
	}
}

const (
	raw  rota.Kind[json.RawMessage] = "raw"
	text rota.Kind[string]          = "text"
)

func nothing[T any](context.Context, *rota.Job, T) error { return nil }

func TestOpenClosesTheSchedulerWhenTheTestEnds(t *testing.T) {
	var s *rota.Scheduler
	record(t, func(t testing.TB) {
		s = rotatest.Open(t)
		if _, err := text.Enqueue(t.Context(), s, "x", rota.EnqueueOptions{}); err != nil {
			t.Errorf("enqueue: %v", err)
		}
	}).mustPass(t)
	if _, err := text.Enqueue(t.Context(), s, "x", rota.EnqueueOptions{}); !errors.Is(err, rota.ErrClosed) {
		t.Errorf("enqueue after the test's end: %v", err)
	}
}

func TestATestMayCloseItsSchedulerItself(t *testing.T) {
	record(t, func(t testing.TB) {
		if err := rotatest.Open(t).Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}).mustPass(t)
}

func TestOpenEndsARunThatTheTestHasLeft(t *testing.T) {
	ended := make(chan error, 1)
	r := record(t, func(t testing.TB) {
		s := rotatest.Open(t)
		done := make(chan struct{})
		rota.Handle(s, text, func(context.Context, *rota.Job, string) error {
			close(done)
			return nil
		}, rota.Policy{})
		go func() { ended <- s.Run(context.Background()) }()
		if _, err := text.Enqueue(t.Context(), s, "x", rota.EnqueueOptions{}); err != nil {
			t.Errorf("enqueue: %v", err)
		}
		<-done
	})
	r.mustPass(t)
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if r.text() != "" {
		t.Errorf("nothing is wrong, and the log says:\n%s", r.text())
	}
}

func TestOpenRefusesWhatItCannotUse(t *testing.T) {
	record(t, func(t testing.TB) {
		rotatest.Open(t, rota.Config{}, rota.Config{})
	}).mustFail(t, "one Config at most, not 2")
	record(t, func(t testing.TB) {
		rotatest.Open(t, rota.Config{MaxArgs: -1})
	}).mustFail(t, "max_args is -1")
}

func TestOpenKeepsToTheDurabilityThatItIsGiven(t *testing.T) {
	for durability, want := range map[rota.Durability]int{"": 1, rota.DurabilityNormal: 1, rota.DurabilityFull: 2} {
		s := rotatest.Open(t, rota.Config{Durability: durability})
		var level int
		if err := s.DB().QueryRow("PRAGMA synchronous").Scan(&level); err != nil || level != want {
			t.Errorf("durability %q: synchronous is %d, not %d: %v", durability, level, want, err)
		}
	}
}

func TestWarningsStandInTheTestsLogOrWhereTheConfigSays(t *testing.T) {
	var own bytes.Buffer
	for _, c := range []struct {
		config      []rota.Config
		inTestsLog  bool
		inOwnLogger bool
	}{
		{nil, true, false},
		{[]rota.Config{{Logger: slog.New(slog.NewTextHandler(&own, nil))}}, false, true},
	} {
		r := record(t, func(t testing.TB) {
			s := rotatest.Open(t, c.config...)
			rota.Handle(s, text, func(context.Context, *rota.Job, string) error {
				return rota.Permanent(errors.New("no such customer"))
			}, rota.Policy{})
			if _, err := text.Enqueue(t.Context(), s, "x", rota.EnqueueOptions{}); err != nil {
				t.Errorf("enqueue: %v", err)
			}
			rotatest.Drain(t, s)
		})
		r.mustPass(t)
		if in := strings.Contains(r.text(), "rota: job is dead"); in != c.inTestsLog {
			t.Errorf("the test's log has the warning: %t\n%s", in, r.text())
		}
		if in := strings.Contains(own.String(), "rota: job is dead"); in != c.inOwnLogger {
			t.Errorf("the config's logger has the warning: %t\n%s", in, &own)
		}
	}
}

func TestTheTestFailsIfAHandlerIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		record(t, func(t testing.TB) {
			s := rotatest.Open(t)
			rota.Handle(s, text, func(context.Context, *rota.Job, string) error {
				<-release
				return nil
			}, rota.Policy{Timeout: time.Second})
			if _, err := text.Enqueue(t.Context(), s, "x", rota.EnqueueOptions{}); err != nil {
				t.Errorf("enqueue: %v", err)
			}
			rotatest.Drain(t, s)
			t.Errorf("drain returned") // it must have ended the test
		}).mustFail(t,
			"text: attempt 1 of job ", "unknown (timeout)",
			"rotatest: drain: rota: handlers still run",
			"rotatest: handlers are still at work although their contexts have ended: 1")
		close(release)
	})
}

func TestAHandlerThatIsOnItsWayOutIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		record(t, func(t testing.TB) {
			s := rotatest.Open(t, rota.Config{Unwind: time.Second})
			rota.Handle(s, text, func(context.Context, *rota.Job, string) error {
				time.Sleep(2500 * time.Millisecond)
				return nil
			}, rota.Policy{Timeout: time.Second})
			go s.Run(context.Background())
			if _, err := text.Enqueue(t.Context(), s, "x", rota.EnqueueOptions{}); err != nil {
				t.Errorf("enqueue: %v", err)
			}
			time.Sleep(2200 * time.Millisecond)
			if stats, err := s.Stats(t.Context()); err != nil || stats.Hung != 1 {
				t.Errorf("%d handlers hang, not 1: %v", stats.Hung, err)
			}
		}).mustPass(t)
	})
}

func TestDrainShowsAPanicWithItsStack(t *testing.T) {
	s := rotatest.Open(t)
	rota.Handle(s, text, func(context.Context, *rota.Job, string) error { return explode() }, rota.Policy{})
	enqueue(t, s, text, "x")
	var attempts []rota.Attempt
	r := record(t, func(t testing.TB) { attempts = rotatest.Drain(t, s) })
	r.mustPass(t)
	if len(attempts) != 1 {
		t.Fatalf("%d attempts", len(attempts))
	}
	a := attempts[0]
	if a.Class != "panic" || a.Outcome != rota.OutcomeRetry || !strings.Contains(a.Stack, "rotatest_test.explode") {
		t.Errorf("evidence: %+v", a)
	}
	if log := r.text(); !strings.Contains(log, "panic: boom\n") || !strings.Contains(log, "\ngithub.com/seed-f4ae5dd2/rota/rotatest_test.explode(") {
		t.Errorf("log:\n%s", log)
	}
}

func explode() error { panic("boom") }

func TestDrainRunsWhatItsJobsMakeDue(t *testing.T) {
	s := rotatest.Open(t)
	rota.Handle(s, raw, func(ctx context.Context, _ *rota.Job, _ json.RawMessage) error {
		_, err := text.Enqueue(ctx, s, "second", rota.EnqueueOptions{})
		return err
	}, rota.Policy{})
	rota.Handle(s, text, nothing, rota.Policy{})
	enqueue(t, s, raw, json.RawMessage("1"))
	attempts := rotatest.Drain(t, s)
	slices.SortFunc(attempts, func(a, b rota.Attempt) int { return strings.Compare(a.Kind, b.Kind) }) // either may end first
	if len(attempts) != 2 || attempts[0].Kind != string(raw) || attempts[1].Kind != string(text) {
		t.Errorf("attempts: %+v", attempts)
	}
	if again := rotatest.Drain(t, s); len(again) != 0 {
		t.Errorf("a second drain made %d attempts", len(again))
	}
}

func TestDrainFailsWhenTheWorkCannotBeDone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db")
	for _, c := range []struct {
		situation string
		prepare   func(t *testing.T, s *rota.Scheduler)
		says      string
	}{
		{"a kind has two handlers", func(_ *testing.T, s *rota.Scheduler) {
			rota.Handle(s, text, nothing, rota.Policy{})
			rota.Handle(s, text, nothing, rota.Policy{})
		}, "handle text: invalid configuration: it has a handler already"},
		{"the scheduler runs", func(t *testing.T, s *rota.Scheduler) { run(t, s) }, "scheduler is running already"},
		{"another scheduler runs", func(t *testing.T, s *rota.Scheduler) {
			other, err := rota.Open(path, rota.Config{Name: "other", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { other.Close() })
			run(t, other)
		}, "another runner holds the lease: other:"},
		{"the scheduler is closed", func(_ *testing.T, s *rota.Scheduler) { s.Close() }, "scheduler is closed"},
	} {
		t.Run(c.situation, func(t *testing.T) {
			s, err := rota.Open(path, rota.Config{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			c.prepare(t, s)
			record(t, func(t testing.TB) { rotatest.Drain(t, s) }).mustFail(t, "rotatest: drain: rota: ", c.says)
		})
	}
}

// run starts s.Run and returns when it is at work: it has done a job.
func run(t *testing.T, s *rota.Scheduler) {
	t.Helper()
	const ping rota.Kind[int] = "ping"
	working := make(chan struct{})
	rota.Handle(s, ping, func(context.Context, *rota.Job, int) error {
		close(working)
		return nil
	}, rota.Policy{})
	enqueue(t, s, ping, 0)
	go s.Run(t.Context())
	<-working
}

func TestDrainNamesTheDueJobsThatItLeavesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			grouped  rota.Kind[int] = "grouped"
			limited  rota.Kind[int] = "limited"
			paused   rota.Kind[int] = "paused"
			stranger rota.Kind[int] = "stranger"
		)
		s := rotatest.Open(t)
		rota.Handle(s, grouped, func(context.Context, *rota.Job, int) error { return errors.New("busy") }, rota.Policy{})
		rota.Handle(s, limited, nothing, rota.Policy{Rate: rota.Rate{Count: 1, Per: time.Hour}})
		rota.Handle(s, paused, nothing, rota.Policy{})
		if err := s.Pause(t.Context(), string(paused), rota.By{}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			enqueue(t, s, stranger, 1)
			enqueue(t, s, limited, 1)
			if _, err := grouped.Enqueue(t.Context(), s, 1, rota.EnqueueOptions{Group: "g"}); err != nil {
				t.Fatal(err)
			}
		}
		enqueue(t, s, paused, 1)
		if _, err := stranger.Enqueue(t.Context(), s, 1, rota.EnqueueOptions{RunAt: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}

		r := record(t, func(t testing.TB) { rotatest.Drain(t, s) })
		r.mustPass(t)
		want := "rotatest: drain left due jobs alone: 2 stranger (this scheduler has no handler for the kind), " +
			`1 grouped (the first of group "g" waits), 1 limited (the kind has reached its rate), 1 paused (the kind is paused)` + "\n"
		if !strings.HasSuffix(r.text(), want) {
			t.Errorf("log:\n%s\nwant at its end:\n%s", r.text(), want)
		}
	})
}

func TestRequireEnqueuedReturnsTheJob(t *testing.T) {
	s := rotatest.Open(t)
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	answer, err := SendInvoice.Enqueue(t.Context(), s, Invoice{ID: 42}, rota.EnqueueOptions{RunAt: at})
	if err != nil {
		t.Fatal(err)
	}
	enqueue(t, s, SendInvoice, Invoice{ID: 43})
	job := rotatest.RequireEnqueued(t, s, SendInvoice, Invoice{ID: 42})
	if job.ID != answer.ID || !job.RunAt.Equal(at) {
		t.Errorf("job %s at %s, not %s at %s", job.ID, job.RunAt, answer.ID, at)
	}
}

func TestPendingPausedAndRunningJobsCountAndOthersDoNot(t *testing.T) {
	s := rotatest.Open(t)
	whileRunning := make(chan bool, 1)
	rota.Handle(s, text, func(_ context.Context, _ *rota.Job, args string) error {
		switch args {
		case "held":
			return rota.Unknown(errors.New("no answer"))
		case "dead":
			return rota.Permanent(errors.New("refused"))
		}
		whileRunning <- !record(t, func(t testing.TB) { rotatest.RequireEnqueued(t, s, text, args) }).failed
		return nil
	}, rota.Policy{OnUnknown: rota.UnknownHold})
	for _, args := range []string{"held", "dead", "succeeded", "cancelled"} {
		enqueue(t, s, text, args)
		job := rotatest.RequireEnqueued(t, s, text, args) // pending
		if args == "cancelled" {
			if err := s.Cancel(t.Context(), job.ID, rota.By{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	rotatest.Drain(t, s)
	if !<-whileRunning {
		t.Error("a running job does not count")
	}
	rotatest.RequireNone(t, s, text)
	for _, args := range []string{"held", "dead", "succeeded", "cancelled"} {
		record(t, func(t testing.TB) { rotatest.RequireEnqueued(t, s, text, args) }).mustFail(t, fmt.Sprintf("%q: %s", args, args))
	}

	err := text.Schedule(t.Context(), s, rota.Schedule{Name: "nightly", Spec: "0 3 * * *"}, "scheduled")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PauseSchedule(t.Context(), "nightly", time.Time{}, rota.By{}); err != nil {
		t.Fatal(err)
	}
	if job := rotatest.RequireEnqueued(t, s, text, "scheduled"); job.State != rota.Paused {
		t.Errorf("the schedule's job is %s", job.State)
	}
}

func TestArgumentsAreComparedAsJSONValues(t *testing.T) {
	s := rotatest.Open(t)
	for i, c := range []struct{ stored, wanted, difference string }{ // "": the same
		{`{"a":1,"b":[true,null]}`, `{"b":[true,null],"a":1}`, ""},
		{`100`, `1e2`, ""},
		{`1.50`, `1.5`, ""},
		{`-0`, `0`, ""},
		{`"é"`, `"\u00e9"`, ""},
		{`9007199254740993`, `9007199254740992`, "it is 9007199254740993, not 9007199254740992"},
		{`1e9999999999`, `1e9999999998`, "it is 1e9999999999, not 1e9999999998"},
		{`1`, `"1"`, `it is 1, not "1"`},
		{`null`, `{}`, "it is null, not {}"},
		{`false`, `null`, "it is false, not null"},
		{`[1]`, `{"0":1}`, `it is [1], not {"0":1}`},
		{`{"a":1}`, `{"a":1,"b":null}`, "b is missing"},
		{`{"a":1,"b":null}`, `{"a":1}`, "b is there, too"},
		{`{"a":{"b":[{"c":1},2]}}`, `{"a":{"b":[{"c":3},2]}}`, "a.b[0].c is 1, not 3"},
		{`[1,2]`, `[1,2,3]`, "it has 2 elements, not 3"},
		{`[1,2,3,4,5]`, `[5,4,3,2,1]`, "[0] is 1, not 5, [1] is 2, not 4, [3] is 4, not 2 and 1 more differences"},
	} {
		t.Run(c.stored+" and "+c.wanted, func(t *testing.T) {
			kind := rota.Kind[json.RawMessage](fmt.Sprintf("raw%d", i))
			enqueue(t, s, kind, json.RawMessage(c.stored))
			require := record(t, func(t testing.TB) { rotatest.RequireEnqueued(t, s, kind, json.RawMessage(c.wanted)) })
			none := record(t, func(t testing.TB) { rotatest.RequireNone(t, s, kind, json.RawMessage(c.wanted)) })
			if c.difference == "" {
				require.mustPass(t)
				none.mustFail(t)
			} else {
				require.mustFail(t, "; "+c.difference+"\n")
				none.mustPass(t)
			}
		})
	}
}

func TestArgumentsAreComparedAsTheHandlerReadsThem(t *testing.T) {
	s := rotatest.Open(t)
	type total struct{ ID, Cents int }
	const bill rota.Kind[total] = "bill"
	n, err := bill.Sweep(t.Context(), s, `SELECT 1, '{"id": 1, "note": "of a newer version"}'`)
	if err != nil || n != 1 {
		t.Fatalf("swept %d: %v", n, err)
	}
	rotatest.RequireEnqueued(t, s, bill, total{ID: 1, Cents: 0})
	rotatest.RequireNone(t, s, bill, total{ID: 1, Cents: 5})
}

func TestAFailureListsTheNearestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sendReminder rota.Kind[Invoice] = "reminder.send"
		s := rotatest.Open(t)
		handleInvoices(s, &mailServer{refusals: 1})
		enqueue(t, s, SendInvoice, Invoice{ID: 7})
		rotatest.Drain(t, s)
		for _, id := range []int{42, 41, 42} {
			enqueue(t, s, SendInvoice, Invoice{ID: id})
		}
		rotatest.Drain(t, s)
		enqueue(t, s, sendReminder, Invoice{ID: 42})
		enqueue(t, s, SendInvoice, Invoice{ID: 43, Lines: []string{"one"}})
		enqueue(t, s, SendInvoice, Invoice{ID: 43})
		for id := range 6 {
			enqueue(t, s, sendReminder, Invoice{ID: id})
		}
		err := SendInvoice.Schedule(t.Context(), s, rota.Schedule{Name: "nightly", Spec: "0 3 * * *"}, Invoice{ID: 1})
		if err != nil {
			t.Fatal(err)
		}

		r := record(t, func(t testing.TB) { rotatest.RequireEnqueued(t, s, SendInvoice, Invoice{ID: 42}) })
		retry := rotatest.RequireEnqueued(t, s, SendInvoice, Invoice{ID: 7})
		want := fmt.Sprintf(`rotatest: no job invoice.send {"ID":42} is pending, paused or running; there is:
	invoice.send {"ID":42}: succeeded, attempt 1
	invoice.send {"ID":42}: succeeded, attempt 1
	invoice.send {"ID":7}: pending until %s (in %s), attempt 1: 421 try again later; ID is 7, not 42
	invoice.send {"ID":43}: pending, due; ID is 43, not 42
	invoice.send {"ID":1}: pending until 2000-01-01T03:00:00Z (in 3h0m0s), schedule nightly; ID is 1, not 42
	invoice.send {"ID":41}: succeeded, attempt 1; ID is 41, not 42
	invoice.send {"ID":43,"Lines":["one"]}: pending, due; ID is 43, not 42, Lines is there, too
	reminder.send {"ID":42}: pending, due
	reminder.send {"ID":0}: pending, due
	reminder.send {"ID":1}: pending, due
	and 4 more: 4 reminder.send
`, retry.RunAt.Format(time.RFC3339), time.Until(retry.RunAt).Round(time.Second))
		r.mustFail(t)
		if r.text() != want {
			t.Errorf("it says\n%s\nnot\n%s", r.text(), want)
		}
	})
}

func TestAFailureSaysThatThereIsNothing(t *testing.T) {
	s := rotatest.Open(t)
	record(t, func(t testing.TB) { rotatest.RequireEnqueued(t, s, text, "x") }).mustFail(t,
		"rotatest: no job text \"x\" is pending, paused or running; there are no jobs at all\n")
}

func TestTwoJobsAreNotOne(t *testing.T) {
	s := rotatest.Open(t)
	enqueue(t, s, text, "x")
	enqueue(t, s, text, "x")
	record(t, func(t testing.TB) { rotatest.RequireEnqueued(t, s, text, "x") }).mustFail(t,
		"rotatest: 2 jobs text \"x\" are pending, paused or running, not one:\n\ttext \"x\": pending, due\n\ttext \"x\": pending, due\n")
}

func TestRequireNoneLooksAtTheKindAndItsArguments(t *testing.T) {
	s := rotatest.Open(t)
	rotatest.RequireNone(t, s, text)
	enqueue(t, s, text, "x")
	rotatest.RequireNone(t, s, raw)
	rotatest.RequireNone(t, s, text, "y", "z")
	record(t, func(t testing.TB) { rotatest.RequireNone(t, s, text) }).mustFail(t,
		"rotatest: no job text should be pending, paused or running, but there is:\n\ttext \"x\": pending, due\n")
	record(t, func(t testing.TB) { rotatest.RequireNone(t, s, text, "y", "x") }).mustFail(t,
		`no job text "y" or "x" should be`, `text "x": pending, due`)
}

func TestALongArgumentIsShortened(t *testing.T) {
	s := rotatest.Open(t)
	enqueue(t, s, text, strings.Repeat("é", 1000))
	r := record(t, func(t testing.TB) { rotatest.RequireNone(t, s, text) })
	r.mustFail(t, "éé… (2002 bytes): pending")
	if len(r.text()) > 400 {
		t.Errorf("%d bytes for one job", len(r.text()))
	}
}

func TestAssertionsFailWhenTheDatabaseCannotBeRead(t *testing.T) {
	s := rotatest.Open(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	record(t, func(t testing.TB) { rotatest.RequireEnqueued(t, s, text, "x") }).mustFail(t, "rotatest: rota: jobs: ")
	record(t, func(t testing.TB) { rotatest.RequireNone(t, s, text) }).mustFail(t, "rotatest: rota: jobs: ")
}

func TestArgumentsThatAreNoJSONFailTheAssertion(t *testing.T) {
	const channels rota.Kind[chan int] = "channels"
	s := rotatest.Open(t)
	record(t, func(t testing.TB) { rotatest.RequireNone(t, s, channels, nil, make(chan int)) }).mustFail(t,
		"rotatest: arguments of channels: json: unsupported type")
}

func TestRunLivesThroughAMonthInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := rotatest.Open(t, rota.Config{PollInterval: -1, LeaseTTL: time.Hour})
		nights := 0
		rota.Handle(s, MakeReport, func(context.Context, *rota.Job, struct{}) error {
			nights++
			return nil
		}, rota.Policy{})
		err := MakeReport.Declare(s, rota.Schedule{Name: "nightly", Spec: "0 3 * * *"}, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(31 * 24 * time.Hour)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if nights != 31 {
			t.Errorf("%d nights in January", nights)
		}
	})
}
