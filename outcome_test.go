package rota

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs the test in a synctest bubble, with a scheduler that was opened in
// it, polls nothing and seldom renews its lease, so that simulated hours cost
// nothing.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, s *Scheduler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.PollInterval = -1
		orDefault(&cfg.LeaseTTL, time.Hour)
		test(t, openAt(t, filepath.Join(t.TempDir(), "rota.db"), cfg))
	})
}

// enqueue stores a job and returns its id.
func enqueue[T any](t testing.TB, s *Scheduler, kind Kind[T], args T, opts EnqueueOptions) string {
	t.Helper()
	answer, err := kind.Enqueue(context.Background(), s, args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return answer.ID
}

// handle is Handle for handlers that want neither arguments nor a type.
func handle(s *Scheduler, kind Kind[struct{}], p Policy, do func(ctx context.Context, job *Job) error) {
	Handle(s, kind, func(ctx context.Context, job *Job, _ struct{}) error { return do(ctx, job) }, p)
}

// runDue runs what is due now, and fails the test if that fails.
func runDue(t testing.TB, s *Scheduler) []Attempt {
	t.Helper()
	closed, err := s.RunDue(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return closed
}

// runUntilIdle runs what is due and moves the bubble's time to what is due next,
// until no ad-hoc job is pending.
func runUntilIdle(t testing.TB, s *Scheduler) (closed []Attempt) {
	t.Helper()
	for {
		closed = append(closed, runDue(t, s)...)
		next := time.Time{}
		for job := range jobsOf(t, s, Filter{State: Pending}) {
			if job.Spec == "" && (next.IsZero() || job.RunAt.Before(next)) {
				next = job.RunAt
			}
		}
		if next.IsZero() {
			return closed
		}
		if !next.After(time.Now()) {
			t.Fatalf("a job is due since %v and does not run", next)
		}
		time.Sleep(time.Until(next))
	}
}

// jobsOf are the jobs that the filter selects.
func jobsOf(t testing.TB, s *Scheduler, f Filter) func(yield func(*Job) bool) {
	return func(yield func(*Job) bool) {
		t.Helper()
		for job, err := range s.Jobs(context.Background(), f) {
			if err != nil {
				t.Fatal(err)
			}
			if !yield(job) {
				return
			}
		}
	}
}

// jobIDs are their ids.
func jobIDs(t testing.TB, s *Scheduler, f Filter) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		t.Helper()
		jobsOf(t, s, f)(func(job *Job) bool { return yield(job.ID) })
	}
}

// jobOf is the job as it stands now.
func jobOf(t testing.TB, s *Scheduler, id string) *Job {
	t.Helper()
	job, err := s.Job(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// attemptsOf is the job's evidence.
func attemptsOf(t testing.TB, s *Scheduler, id string) []Attempt {
	t.Helper()
	all, err := s.Attempts(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// story is the job's evidence in short: "unknown/timeout retry/http_503 succeeded/ok".
func story(t testing.TB, s *Scheduler, id string) string {
	t.Helper()
	var words []string
	for _, a := range attemptsOf(t, s, id) {
		words = append(words, string(a.Outcome)+"/"+a.Class)
	}
	return strings.Join(words, " ")
}

// The classification, on its own: what an error means, and why the context
// ended, to an outcome and a class.
func TestEveryErrorIsClassifiedAsWhatItIs(t *testing.T) {
	var (
		boom    = errors.New("boom")
		reset   = &url.Error{Op: "Post", URL: "http://x", Err: &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}}
		pipe    = &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
		refused = &url.Error{Op: "Post", URL: "http://x", Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}}
		dial    = &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
		noHost  = &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "x", IsTimeout: true}}
		read    = &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		eof     = &url.Error{Op: "Post", URL: "http://x", Err: io.EOF}
		short   = &net.OpError{Op: "read", Net: "tcp", Err: io.ErrUnexpectedEOF}
	)
	const none = time.Duration(-1)
	for _, c := range []struct {
		name    string
		err     error
		cause   error
		outcome Outcome
		class   string
		after   time.Duration
		atMost  int
	}{
		{"success", nil, nil, OutcomeSucceeded, "ok", none, 0},
		{"success after the deadline", nil, ErrTimeout, OutcomeSucceeded, "ok", none, 0},
		{"success in spite of a cancel", nil, ErrCancelled, OutcomeSucceeded, "ok", none, 0},
		{"plain", boom, nil, OutcomeRetry, "error", none, 0},
		{"wrapped plain", fmt.Errorf("send: %w", boom), nil, OutcomeRetry, "error", none, 0},
		{"context.Canceled of the handler's own", context.Canceled, nil, OutcomeRetry, "error", none, 0},

		{"permanent", Permanent(boom), nil, OutcomeFailed, "permanent", none, 0},
		{"wrapped permanent", fmt.Errorf("send: %w", Permanent(boom)), nil, OutcomeFailed, "permanent", none, 0},
		{"permanent among others", errors.Join(boom, Permanent(boom)), nil, OutcomeFailed, "permanent", none, 0},
		{"permanent after the deadline", Permanent(boom), ErrTimeout, OutcomeFailed, "permanent", none, 0},
		{"permanent when cancelled", Permanent(boom), ErrCancelled, OutcomeFailed, "permanent", none, 0},
		{"permanent in a shutdown", Permanent(boom), ErrShutdown, OutcomeFailed, "permanent", none, 0},
		{"permanent within retry after", RetryAfter(time.Second, Permanent(boom)), nil, OutcomeFailed, "permanent", time.Second, 0},

		{"retry after", RetryAfter(time.Minute, boom), nil, OutcomeRetry, "error", time.Minute, 0},
		{"retry after nothing", RetryAfter(0, boom), nil, OutcomeRetry, "error", 0, 0},
		{"retry after less than nothing", RetryAfter(-time.Hour, boom), nil, OutcomeRetry, "error", 0, 0},
		{"retry after, asked in a shutdown", RetryAfter(time.Minute, boom), ErrShutdown, OutcomeRetry, "error", time.Minute, 0},
		{"the outer retry after counts", RetryAfter(time.Minute, RetryAfter(time.Hour, boom)), nil, OutcomeRetry, "error", time.Minute, 0},
		{"retry after a timeout", RetryAfter(time.Minute, context.DeadlineExceeded), ErrTimeout, OutcomeUnknown, "timeout", time.Minute, 0},

		{"at most", AtMost(2, boom), nil, OutcomeRetry, "error", none, 2},
		{"at most none", AtMost(0, boom), nil, OutcomeRetry, "error", none, 1},
		{"at most and retry after", AtMost(2, RetryAfter(time.Minute, boom)), nil, OutcomeRetry, "error", time.Minute, 2},
		{"retry after and at most", RetryAfter(time.Minute, AtMost(2, boom)), nil, OutcomeRetry, "error", time.Minute, 2},
		{"at most of a timeout", AtMost(2, context.DeadlineExceeded), ErrTimeout, OutcomeUnknown, "timeout", none, 2},
		{"at most of a cut", AtMost(2, reset), nil, OutcomeUnknown, "connection", none, 2},
		{"at most of a shutdown", AtMost(2, context.Canceled), ErrShutdown, OutcomeInterrupted, "shutdown", none, 2},

		{"unknown", Unknown(boom), nil, OutcomeUnknown, "unknown", none, 0},
		{"unknown and at most", AtMost(3, Unknown(boom)), nil, OutcomeUnknown, "unknown", none, 3},
		{"unknown of a refusal", Unknown(refused), nil, OutcomeUnknown, "unknown", none, 0},
		{"snooze", Snooze(time.Hour), nil, OutcomeSnoozed, "snooze", time.Hour, 0},
		{"wrapped snooze", fmt.Errorf("not yet: %w", Snooze(time.Hour)), nil, OutcomeSnoozed, "snooze", time.Hour, 0},
		{"snooze less than nothing", Snooze(-1), nil, OutcomeSnoozed, "snooze", 0, 0},

		{"deadline of the attempt", context.DeadlineExceeded, ErrTimeout, OutcomeUnknown, "timeout", none, 0},
		{"cause of the deadline", ErrTimeout, ErrTimeout, OutcomeUnknown, "timeout", none, 0},
		{"any error after the deadline", boom, ErrTimeout, OutcomeUnknown, "timeout", none, 0},
		{"deadline of the handler's own", fmt.Errorf("ask: %w", context.DeadlineExceeded), nil, OutcomeUnknown, "timeout", none, 0},
		{"read timeout", read, nil, OutcomeUnknown, "timeout", none, 0},
		{"reset", reset, nil, OutcomeUnknown, "connection", none, 0},
		{"broken pipe", pipe, nil, OutcomeUnknown, "connection", none, 0},
		{"end of the answer", eof, nil, OutcomeUnknown, "connection", none, 0},
		{"half an answer", short, nil, OutcomeUnknown, "connection", none, 0},
		{"end of a file", io.EOF, nil, OutcomeRetry, "error", none, 0},

		{"refused", refused, nil, OutcomeRetry, "error", none, 0},
		{"refused by the deadline", dial, ErrTimeout, OutcomeRetry, "error", none, 0},
		{"no such host", noHost, nil, OutcomeRetry, "error", none, 0},

		{"panic", &panicked{value: "boom", stack: "main.go:1"}, nil, OutcomeRetry, "panic", none, 0},
		{"panic after the deadline", &panicked{value: boom}, ErrTimeout, OutcomeRetry, "panic", none, 0},
		{"panic with a mark", &panicked{value: Permanent(boom)}, nil, OutcomeRetry, "panic", none, 0},
		{"goexit", errGoexit, nil, OutcomeRetry, "goexit", none, 0},
		{"undecodable", fmt.Errorf("%w: %w", errUndecodable, boom), nil, OutcomeFailed, "undecodable", none, 0},

		{"cancelled", boom, ErrCancelled, OutcomeCancelled, "cancelled", none, 0},
		{"cancelled, with a wish", RetryAfter(time.Hour, boom), ErrCancelled, OutcomeCancelled, "cancelled", time.Hour, 0},
		{"shut down", context.Canceled, ErrShutdown, OutcomeInterrupted, "shutdown", none, 0},
		{"shut down, with an error of its own", reset, ErrShutdown, OutcomeInterrupted, "shutdown", none, 0},
		{"lease lost", context.Canceled, ErrLeaseLost, OutcomeInterrupted, "lease_lost", none, 0},
	} {
		r := classify(c.err, c.cause)
		if r.outcome != c.outcome || r.class != c.class || r.after != c.after || r.atMost != c.atMost {
			t.Errorf("%s: %s/%s after %v at most %d; want %s/%s after %v at most %d",
				c.name, r.outcome, r.class, r.after, r.atMost, c.outcome, c.class, c.after, c.atMost)
		}
		if c.err != nil && !errors.Is(c.err, r.err) {
			t.Errorf("%s: the evidence is about %v", c.name, r.err)
		}
	}
}

func TestMarksOfNoErrorAreNoError(t *testing.T) {
	for name, err := range map[string]error{
		"Permanent": Permanent(nil), "RetryAfter": RetryAfter(time.Second, nil), "AtMost": AtMost(1, nil), "Unknown": Unknown(nil),
	} {
		if err != nil {
			t.Errorf("%s(nil) is %v", name, err)
		}
	}
}

func TestMarksKeepTheErrorAndItsText(t *testing.T) {
	cause := fmt.Errorf("send: %w", errGone)
	for _, err := range []error{Permanent(cause), RetryAfter(time.Second, cause), AtMost(1, cause), Unknown(cause)} {
		if !errors.Is(err, errGone) || err.Error() != cause.Error() {
			t.Errorf("%T: %v", err, err)
		}
	}
}

var errGone = errors.New("no such thing")

func TestEveryHTTPStatusHasItsClass(t *testing.T) {
	retryable := []int{408, 425, 429, 502, 503, 504}
	for code := 100; code < 600; code++ {
		err := HTTPError(&http.Response{StatusCode: code, Status: strconv.Itoa(code), Header: http.Header{}})
		if code < 400 {
			if err != nil {
				t.Errorf("%d: %v", code, err)
			}
			continue
		}
		want, atMost := OutcomeRetry, 0
		switch {
		case slices.Contains(retryable, code):
		case code >= 500:
			atMost = 3 // two retries
		default:
			want = OutcomeFailed
		}
		r := classify(err, nil)
		if r.outcome != want || r.atMost != atMost || r.class != fmt.Sprintf("http_%d", code) {
			t.Errorf("%d: %s/%s, at most %d; want %s, at most %d", code, r.outcome, r.class, r.atMost, want, atMost)
		}
		// The answer has come, so a deadline that passes now changes nothing.
		if late := classify(err, ErrTimeout); late.outcome != want {
			t.Errorf("%d after the deadline: %s", code, late.outcome)
		}
	}
}

func TestHTTPErrorsNameTheRequestWithoutItsSecrets(t *testing.T) {
	req := httptest.NewRequest("POST", "https://user:hunter2@api.example/charge/7?token=hunter2", nil)
	err := HTTPError(&http.Response{StatusCode: 503, Status: "503 Service Unavailable", Request: req})
	if want := "POST https://api.example/charge/7: http status 503 Service Unavailable"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestRetryAfterHeadersAreReadInBothFormsAndGarbageIsPassedOver(t *testing.T) {
	const date, later = "Mon, 30 Nov 2026 12:00:00 GMT", "Mon, 30 Nov 2026 12:02:30 GMT"
	for _, c := range []struct {
		value, date string
		after       time.Duration
		until       string
	}{
		{"", date, -1, ""},
		{"0", date, 0, ""},
		{"120", date, 2 * time.Minute, ""},
		{"  120 ", date, 2 * time.Minute, ""},
		{"007", date, 7 * time.Second, ""},
		{"604801", date, MaxRetryAfter, ""},
		{"99999999999999999999999999", date, MaxRetryAfter, ""},
		{later, date, 150 * time.Second, ""},
		{date, later, 0, ""},                                            // a date that has passed
		{later, "", -1, later},                                          // no Date: the own clock must do
		{later, "yesterday", -1, later},                                 // no readable Date
		{"Monday, 30-Nov-26 12:02:30 GMT", date, 150 * time.Second, ""}, // RFC 850
		{"Mon Nov 30 12:02:30 2026", date, 150 * time.Second, ""},       // asctime
		{"-5", date, -1, ""},
		{"1.5", date, -1, ""},
		{"1e3", date, -1, ""},
		{"0x10", date, -1, ""},
		{"soon", date, -1, ""},
		{"120, 240", date, -1, ""},
		{"２０", date, -1, ""}, // wide digits
		{"2026-11-30T12:02:30Z", date, -1, ""},
		{strings.Repeat("9", 1<<20), date, MaxRetryAfter, ""},
	} {
		h := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
		after, until := parseRetryAfter(h)
		want := time.Time{}
		if c.until != "" {
			want, _ = http.ParseTime(c.until)
		}
		if after != c.after || !until.Equal(want) {
			t.Errorf("Retry-After %.40q, Date %q: %v, %v; want %v, %v", c.value, c.date, after, until, c.after, want)
		}
	}
}

// The service that the injected outcomes come from.

const (
	charge     Kind[chargeArgs] = "charge"
	chargeText Kind[string]     = "charge" // as an older program knew it
)

type chargeArgs struct {
	Cents int `json:"cents"`
}

// request is one that the service has got.
type request struct {
	key  string
	body string
}

// service answers POST /<what> with what the path says, and keeps a record.
type service struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string][]request // by path
}

func startService(t testing.TB) *service {
	s := &service{seen: make(map[string][]request)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.seen[r.URL.Path] = append(s.seen[r.URL.Path], request{r.Header.Get("Idempotency-Key"), string(body)})
	n := len(s.seen[r.URL.Path])
	s.mu.Unlock()
	switch what := strings.TrimPrefix(r.URL.Path, "/"); what {
	case "timeout":
		<-r.Context().Done()
	case "reset", "cut":
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		if what == "reset" {
			_ = conn.(*net.TCPConn).SetLinger(0) // close sends RST
		}
		conn.Close()
	case "busy": // once, with a hint
		if n == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	case "garbage-hint":
		if n == 1 {
			w.Header().Set("Retry-After", "when I feel better")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "date-hint":
		if n == 1 { // a service whose clock is years behind ours
			now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
			w.Header().Set("Date", now.Format(http.TimeFormat))
			w.Header().Set("Retry-After", now.Add(time.Second).Format(http.TimeFormat))
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	default:
		code, err := strconv.Atoi(what)
		if err != nil {
			panic(err)
		}
		w.WriteHeader(code)
	}
}

// requests are those that the path has got.
func (s *service) requests(path string) []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen["/"+path])
}

// client uses each connection once. On one that it had used before, net/http
// would itself repeat a request with an Idempotency-Key that was cut off.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// post is a handler's call of the service.
func post(ctx context.Context, url string, job *Job, args chargeArgs) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(body))
	if err != nil {
		return Permanent(err)
	}
	req.Header.Set("Idempotency-Key", job.IdempotencyKey)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	job.Note("status", resp.StatusCode)
	return HTTPError(resp)
}

// TestInjectedOutcomesAreClassifiedDecidedAndRecorded is the table of what the
// other side can do to a job. Each row runs a real handler against a real
// server, and looks at all that stands in the table afterwards.
func TestInjectedOutcomesAreClassifiedDecidedAndRecorded(t *testing.T) {
	srv := startService(t)
	dead := httptest.NewServer(nil)
	dead.Close() // a port that nobody listens on
	const base, limit = 20 * time.Millisecond, 4
	usual := []delayRange{{base, base * 6 / 5}, {2 * base, 2 * base * 6 / 5}, {3 * base, 3 * base * 6 / 5}} // capped
	hint := []delayRange{{time.Second, time.Second}}
	for _, c := range []struct {
		name     string
		url      string
		args     any
		outcomes string       // of the attempts
		reasons  string       // of the decisions
		delays   []delayRange // of the attempts that are tried again
		bound    int          // recorded with each; 0: none was asked
		state    State
		reason   string
		evidence string // in the last error
		requests int
	}{
		{"timeout", srv.URL + "/timeout", chargeArgs{100},
			"unknown/timeout unknown/timeout unknown/timeout unknown/timeout", "unknown unknown unknown exhausted",
			usual, limit, Dead, "exhausted", "attempt exceeded its timeout", 4},
		{"reset", srv.URL + "/reset", chargeArgs{100},
			"unknown/connection unknown/connection unknown/connection unknown/connection", "unknown unknown unknown exhausted",
			usual, limit, Dead, "exhausted", "connection reset by peer", 4},
		{"cut", srv.URL + "/cut", chargeArgs{100},
			"unknown/connection unknown/connection unknown/connection unknown/connection", "unknown unknown unknown exhausted",
			usual, limit, Dead, "exhausted", "EOF", 4},
		{"refused", dead.URL + "/refused", chargeArgs{100},
			"retry/error retry/error retry/error failed/error", "retry retry retry exhausted",
			usual, limit, Dead, "exhausted", "connection refused", 0},
		{"408", srv.URL + "/408", chargeArgs{100},
			"retry/http_408 retry/http_408 retry/http_408 failed/http_408", "retry retry retry exhausted",
			usual, limit, Dead, "exhausted", "408 Request Timeout", 4},
		{"429 with a hint", srv.URL + "/busy", chargeArgs{100},
			"retry/http_429 succeeded/ok", "retry_after succeeded", hint, limit, Succeeded, "succeeded", "", 2},
		{"503 with a date of another clock", srv.URL + "/date-hint", chargeArgs{100},
			"retry/http_503 succeeded/ok", "retry_after succeeded", hint, limit, Succeeded, "succeeded", "", 2},
		{"503 with a hint that can't be read", srv.URL + "/garbage-hint", chargeArgs{100},
			"retry/http_503 succeeded/ok", "retry succeeded", usual[:1], limit, Succeeded, "succeeded", "", 2},
		{"500", srv.URL + "/500", chargeArgs{100},
			"retry/http_500 retry/http_500 failed/http_500", "retry retry exhausted",
			usual[:2], 3, Dead, "exhausted", "500 Internal Server Error", 3},
		{"malformed input, refused by the service", srv.URL + "/422", chargeArgs{100},
			"failed/http_422", "permanent", nil, 0, Dead, "permanent", "422 Unprocessable Entity", 1},
		{"malformed input, refused here", srv.URL + "/200", "one hundred",
			"failed/undecodable", "undecodable", nil, 0, Dead, "undecodable", "cannot unmarshal string", 0},
		{"authentication failure", srv.URL + "/401", chargeArgs{100},
			"failed/http_401", "permanent", nil, 0, Dead, "permanent", "401 Unauthorized", 1},
		{"forbidden", srv.URL + "/403", chargeArgs{100},
			"failed/http_403", "permanent", nil, 0, Dead, "permanent", "403 Forbidden", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			timeout := time.Minute // a slow machine must not bring others
			if strings.HasPrefix(c.outcomes, "unknown/timeout") {
				timeout = 60 * time.Millisecond
			}
			s := open(t, Config{})
			Handle(s, charge, func(ctx context.Context, job *Job, args chargeArgs) error {
				return post(ctx, c.url, job, args)
			}, Policy{Timeout: timeout, Retry: Retry{Base: base, Cap: 3 * base, Jitter: Fraction(0.2), MaxAttempts: limit}})
			var id string
			switch args := c.args.(type) {
			case chargeArgs:
				id = enqueue(t, s, charge, args, EnqueueOptions{})
			case string:
				id = enqueue(t, s, chargeText, args, EnqueueOptions{})
			}
			stop := start(t, s)
			waitFor(t, "the job has ended", func() bool { return state(t, s, id).Terminal() })
			stop()

			job, attempts := jobOf(t, s, id), attemptsOf(t, s, id)
			if job.State != c.state || job.Reason != c.reason {
				t.Errorf("the job is %s, %s; want %s, %s", job.State, job.Reason, c.state, c.reason)
			}
			if got := story(t, s, id); got != c.outcomes {
				t.Errorf("outcomes %s\n    want %s", got, c.outcomes)
			}
			var reasons []string
			for i, a := range attempts {
				reasons = append(reasons, a.Reason)
				if a.Number != i+1 || a.StartedAt.IsZero() || a.FinishedAt.Before(a.StartedAt) {
					t.Errorf("attempt %d: %+v", i+1, a)
				}
				again := i < len(attempts)-1
				if again != (a.Decision == Pending) || again != !a.NextAt.IsZero() {
					t.Errorf("attempt %d: decision %s, next at %v", i+1, a.Decision, a.NextAt)
				}
				wantBound := c.bound
				if a.Outcome == OutcomeSucceeded {
					wantBound = 0
				}
				if a.Bound != wantBound {
					t.Errorf("attempt %d: bound %d, want %d", i+1, a.Bound, wantBound)
				}
				if !again {
					continue
				}
				if got := (delayRange{a.DelayMin, a.DelayMax}); got != c.delays[i] {
					t.Errorf("attempt %d: delay range %v, want %v", i+1, got, c.delays[i])
				}
				if d := a.NextAt.Sub(a.FinishedAt); d < a.DelayMin-time.Microsecond || d > a.DelayMax+time.Microsecond {
					t.Errorf("attempt %d: delay %v outside of its range", i+1, d)
				}
				if next := attempts[i+1]; next.ClaimedAt.Before(a.NextAt) {
					t.Errorf("attempt %d began at %v, before %v", i+2, next.ClaimedAt, a.NextAt)
				}
				if a.Error == "" {
					t.Errorf("attempt %d keeps no error", i+1)
				}
			}
			if got := strings.Join(reasons, " "); got != c.reasons {
				t.Errorf("reasons %s\n   want %s", got, c.reasons)
			}
			last := attempts[len(attempts)-1]
			if !strings.Contains(last.Error, c.evidence) || (c.evidence == "") != (last.Error == "") || job.Error != last.Error {
				t.Errorf("evidence %q, job %q; want %q", last.Error, job.Error, c.evidence)
			}
			if strings.Contains(last.Class, "http") && !strings.Contains(string(last.Note), `"status":`+strings.TrimPrefix(last.Class, "http_")) {
				t.Errorf("note %s", last.Note)
			}
			path := c.url[strings.LastIndexByte(c.url, '/')+1:]
			if got := srv.requests(path); len(got) != c.requests {
				t.Errorf("the service got %d requests, want %d", len(got), c.requests)
			} else {
				for _, r := range got {
					if r.key != id || r.body != `{"cents":100}` {
						t.Errorf("the service got %+v", r)
					}
				}
			}
		})
	}
}

// acceptedThenCrash is the row of the table that needs a process to die: the
// service has accepted the request when the process ends.
func init() {
	childRoles["outcome: accepted, then crash"] = func(args []string) {
		s, err := Open(args[0], Config{})
		if err != nil {
			childFatal(err)
		}
		Handle(s, charge, func(ctx context.Context, job *Job, a chargeArgs) error {
			if err := post(ctx, args[1], job, a); err != nil {
				return err
			}
			os.Exit(3) // between the effect and its record
			return nil
		}, Policy{OnUnknown: OnUnknown(args[2]), Probe: func(context.Context, *Job) (Verdict, error) { return CannotTell, nil }})
		childFatal(s.Run(childContext()))
	}
}

func TestARequestThatWasAcceptedBeforeACrashIsUnknownAndKeepsItsKey(t *testing.T) {
	for _, c := range []struct {
		policy   OnUnknown
		verdict  Verdict // of the next process's probe
		outcomes string
		state    State
		requests int
		decided  State
	}{
		{UnknownRetry, "", "unknown/process_died succeeded/ok", Succeeded, 2, Pending},
		{UnknownHold, "", "unknown/process_died", Held, 1, Held},
		{UnknownProbe, Happened, "unknown/process_died succeeded/probe", Succeeded, 1, Pending},
		{UnknownProbe, NotHappened, "unknown/process_died succeeded/ok", Succeeded, 2, Pending},
		{UnknownProbe, CannotTell, "unknown/process_died unknown/probe", Held, 1, Pending},
	} {
		t.Run(string(c.policy)+" "+string(c.verdict), func(t *testing.T) {
			t.Parallel()
			srv := startService(t)
			path := filepath.Join(t.TempDir(), "rota.db")
			s := openAt(t, path, Config{})
			id := enqueue(t, s, charge, chargeArgs{100}, EnqueueOptions{IdempotencyKey: "invoice-7"})
			victim := startChild(t, "outcome: accepted, then crash", path, srv.URL+"/201", string(c.policy))
			if err := victim.wait(); err == nil || !strings.Contains(err.Error(), "exit status 3") {
				t.Fatalf("the child ended with %v", err)
			}
			if got := state(t, s, id); got != Running {
				t.Fatalf("after the crash the job is %s", got)
			}

			var asked string
			Handle(s, charge, func(ctx context.Context, job *Job, a chargeArgs) error {
				return post(ctx, srv.URL+"/201", job, a)
			}, Policy{OnUnknown: c.policy, Probe: func(_ context.Context, job *Job) (Verdict, error) {
				asked = job.IdempotencyKey
				return c.verdict, nil
			}})
			runDue(t, s)
			if got := story(t, s, id); got != c.outcomes {
				t.Errorf("outcomes %s, want %s", got, c.outcomes)
			}
			job, first := jobOf(t, s, id), attemptsOf(t, s, id)[0]
			if job.State != c.state {
				t.Errorf("the job is %s, want %s", job.State, c.state)
			}
			if c.state == Held && job.Reason != "unknown" {
				t.Errorf("held for %q", job.Reason)
			}
			if first.StartedAt.IsZero() || first.Decision != c.decided || first.Bound != 3 || !strings.Contains(first.Error, "without recording") ||
				first.Runner == "" || first.DelayMin != 0 || first.DelayMax != 0 {
				t.Errorf("evidence of the crash: %+v", first)
			}
			got := srv.requests("201")
			if len(got) != c.requests {
				t.Errorf("the service got %d requests, want %d", len(got), c.requests)
			}
			for _, r := range got {
				if r.key != "invoice-7" {
					t.Errorf("a request with the key %q", r.key)
				}
			}
			if c.verdict != "" && asked != "invoice-7" {
				t.Errorf("the probe was asked about %q", asked)
			}
		})
	}
}

func TestRetryAfterIsFollowedBeyondTheCapAndUpToItsOwnLimit(t *testing.T) {
	for _, c := range []struct{ ask, want time.Duration }{
		{0, 0},
		{1500 * time.Millisecond, 1500 * time.Millisecond},
		{5 * time.Hour, 5 * time.Hour}, // the cap is an hour
		{MaxRetryAfter, MaxRetryAfter},
		{30 * 24 * time.Hour, MaxRetryAfter},
		{math.MaxInt64, MaxRetryAfter},
	} {
		bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
			var began []time.Time
			handle(s, "hinted", Policy{Retry: Retry{Cap: time.Hour, MaxAttempts: 2}}, func(context.Context, *Job) error {
				began = append(began, time.Now())
				return RetryAfter(c.ask, errors.New("later"))
			})
			id := enqueue(t, s, Kind[struct{}]("hinted"), struct{}{}, EnqueueOptions{})
			runUntilIdle(t, s)
			a := attemptsOf(t, s, id)
			if len(a) != 2 || a[0].Reason != "retry_after" || a[0].DelayMin != c.want || a[0].DelayMax != c.want {
				t.Fatalf("asked for %v: %+v", c.ask, a)
			}
			if got := began[1].Sub(began[0]); got != c.want {
				t.Errorf("asked for %v: it came %v later, want %v", c.ask, got, c.want)
			}
			if a[1].Decision != Dead || a[1].Reason != "exhausted" || !a[1].NextAt.IsZero() {
				t.Errorf("the last attempt: %+v", a[1])
			}
		})
	}
}

func TestAtMostLowersTheBoundAndNeverRaisesIt(t *testing.T) {
	for _, c := range []struct{ atMost, policy, want int }{{1, 8, 1}, {2, 8, 2}, {3, 8, 3}, {20, 4, 4}, {0, 8, 1}, {-5, 8, 1}} {
		bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
			handle(s, "bounded", Policy{Retry: Retry{MaxAttempts: c.policy}}, func(context.Context, *Job) error {
				return AtMost(c.atMost, errors.New("no"))
			})
			id := enqueue(t, s, Kind[struct{}]("bounded"), struct{}{}, EnqueueOptions{})
			runUntilIdle(t, s)
			a := attemptsOf(t, s, id)
			if len(a) != c.want || a[0].Bound != c.want || jobOf(t, s, id).Reason != "exhausted" {
				t.Errorf("at most %d of %d: %d attempts, bound %d", c.atMost, c.policy, len(a), a[0].Bound)
			}
		})
	}
}

func TestASnoozeSpendsNoAttempt(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		snoozes := 0
		handle(s, "sleepy", Policy{Retry: Retry{Base: time.Second, MaxAttempts: 2, Jitter: NoJitter()}}, func(_ context.Context, job *Job) error {
			if snoozes < 40 && snoozes%2 == 0 || snoozes%2 == 1 && snoozes < 39 {
				snoozes++
				return Snooze(time.Hour)
			}
			return errors.New("no")
		})
		begin := time.Now()
		id := enqueue(t, s, Kind[struct{}]("sleepy"), struct{}{}, EnqueueOptions{})
		runUntilIdle(t, s)
		a := attemptsOf(t, s, id)
		if want := strings.Repeat("snoozed/snooze ", snoozes) + "retry/error failed/error"; story(t, s, id) != want {
			t.Fatalf("%d snoozes: %s", snoozes, story(t, s, id))
		}
		if got, want := a[snoozes].ClaimedAt.Sub(begin), time.Duration(snoozes)*time.Hour; got != want {
			t.Errorf("the first true attempt came after %v, want %v", got, want)
		}
		if a[0].Bound != 0 || a[0].Decision != Pending || a[0].Reason != "snoozed" || !a[0].NextAt.Equal(a[0].FinishedAt.Add(time.Hour)) {
			t.Errorf("a snooze: %+v", a[0])
		}
		if a[snoozes].Bound != 2 || a[snoozes].DelayMin != time.Second {
			t.Errorf("the first failure has the delay and bound of a later one: %+v", a[snoozes])
		}
	})
}

func TestASuccessAfterTheDeadlineIsASuccess(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		handle(s, "late", Policy{Timeout: time.Second}, func(ctx context.Context, _ *Job) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, ErrTimeout) || !errors.Is(cause, context.DeadlineExceeded) {
				t.Errorf("the context ended with %v", cause)
			}
			time.Sleep(time.Second) // within the unwinding
			return nil
		})
		id := enqueue(t, s, Kind[struct{}]("late"), struct{}{}, EnqueueOptions{})
		runDue(t, s)
		a := attemptsOf(t, s, id)
		if story(t, s, id) != "succeeded/ok" || a[0].FinishedAt.Sub(a[0].StartedAt) != 2*time.Second {
			t.Errorf("%+v", a)
		}
	})
}

func TestATimeoutOfNoneLetsAHandlerWorkForDays(t *testing.T) {
	bubble(t, Config{LeaseTTL: time.Hour}, func(t *testing.T, s *Scheduler) {
		handle(s, "long", Policy{Timeout: -1}, func(ctx context.Context, _ *Job) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(72 * time.Hour):
				return nil
			}
		})
		handle(s, "default", Policy{}, func(ctx context.Context, _ *Job) error {
			<-ctx.Done()
			return Permanent(ctx.Err())
		})
		long := enqueue(t, s, Kind[struct{}]("long"), struct{}{}, EnqueueOptions{})
		usual := enqueue(t, s, Kind[struct{}]("default"), struct{}{}, EnqueueOptions{})
		runDue(t, s)
		if got := state(t, s, long); got != Succeeded {
			t.Errorf("the long job is %s", got)
		}
		if a := attemptsOf(t, s, usual); a[0].FinishedAt.Sub(a[0].StartedAt) != 15*time.Minute {
			t.Errorf("the default timeout came after %v", a[0].FinishedAt.Sub(a[0].StartedAt))
		}
	})
}

func TestMaxElapsedEndsAJobBeforeAnAttemptThatWouldComeTooLate(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		// 10, 20, 40, 80 s: attempts at 0, 10, 30, 70 and (too late) 150 s.
		retry := Retry{Jitter: NoJitter(), MaxAttempts: 20, MaxElapsed: 100 * time.Second}
		var began []time.Duration
		begin := time.Now().Add(30 * 24 * time.Hour)
		handle(s, "elapsing", Policy{Retry: retry}, func(context.Context, *Job) error {
			began = append(began, time.Since(begin))
			return errors.New("no")
		})
		// Its time does not run while it waits for its first attempt.
		id := enqueue(t, s, Kind[struct{}]("elapsing"), struct{}{}, EnqueueOptions{RunAt: begin})
		runUntilIdle(t, s)
		if want := []time.Duration{0, 10 * time.Second, 30 * time.Second, 70 * time.Second}; !slices.Equal(began, want) {
			t.Errorf("attempts at %v, want %v", began, want)
		}
		job, a := jobOf(t, s, id), attemptsOf(t, s, id)
		if last := a[len(a)-1]; job.State != Dead || job.Reason != "expired" || last.Outcome != OutcomeFailed || last.Reason != "expired" || !last.NextAt.IsZero() {
			t.Errorf("job %s, %s; last attempt %+v", job.State, job.Reason, last)
		}
	})
}

func TestMaxElapsedAlsoCountsTheTimeInWhichNobodyRan(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		handle(s, "elapsing", Policy{Retry: Retry{MaxElapsed: time.Hour}}, func(context.Context, *Job) error {
			return errors.New("no")
		})
		id := enqueue(t, s, Kind[struct{}]("elapsing"), struct{}{}, EnqueueOptions{})
		runDue(t, s)
		time.Sleep(time.Hour) // the machine is down
		runDue(t, s)
		if job := jobOf(t, s, id); job.State != Dead || job.Reason != "expired" || job.Attempt != 1 {
			t.Errorf("%s, %s after %d attempts", job.State, job.Reason, job.Attempt)
		}
	})
}

func TestAJobsOwnRetryIsStoredAndCountsWhereTheKindsPolicyDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		enqueuer := openAt(t, path, Config{PollInterval: -1}) // knows no handler
		own := Retry{Base: time.Second, Factor: 3, Cap: 5 * time.Second, Jitter: Plus(time.Second), MaxAttempts: 4}
		id := enqueue(t, enqueuer, Kind[struct{}]("stored"), struct{}{}, EnqueueOptions{Retry: &own})

		s := openAt(t, path, Config{PollInterval: -1})
		handle(s, "stored", Policy{Retry: Retry{Base: time.Hour, MaxAttempts: 2}}, func(_ context.Context, job *Job) error {
			if job.Retry == nil || *job.Retry != own {
				t.Errorf("the job carries %+v", job.Retry)
			}
			return errors.New("no")
		})
		runUntilIdle(t, s)
		var ranges []delayRange
		for _, a := range attemptsOf(t, s, id) {
			if a.Bound != 4 {
				t.Errorf("bound %d", a.Bound)
			}
			ranges = append(ranges, delayRange{a.DelayMin, a.DelayMax})
		}
		want := []delayRange{{time.Second, 2 * time.Second}, {3 * time.Second, 4 * time.Second}, {5 * time.Second, 6 * time.Second}, {}}
		if !slices.Equal(ranges, want) {
			t.Errorf("ranges %v, want %v", ranges, want)
		}
	})
}

func TestUnknownOutcomesFollowTheKindsPolicy(t *testing.T) {
	t.Run("retry", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
			handle(s, "doubtful", Policy{Retry: Retry{MaxAttempts: 3}}, func(context.Context, *Job) error {
				return Unknown(errors.New("no answer"))
			})
			id := enqueue(t, s, Kind[struct{}]("doubtful"), struct{}{}, EnqueueOptions{})
			runUntilIdle(t, s)
			job := jobOf(t, s, id)
			if story(t, s, id) != "unknown/unknown unknown/unknown unknown/unknown" || job.State != Dead || job.Reason != "exhausted" {
				t.Errorf("%s, %s: %s", job.State, job.Reason, story(t, s, id))
			}
		})
	})
	t.Run("hold", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
			calls := 0
			handle(s, "doubtful", Policy{OnUnknown: UnknownHold}, func(context.Context, *Job) error {
				if calls++; calls == 1 {
					return errors.New("an ordinary failure is retried")
				}
				return Unknown(errors.New("no answer"))
			})
			id := enqueue(t, s, Kind[struct{}]("doubtful"), struct{}{}, EnqueueOptions{})
			runUntilIdle(t, s)
			time.Sleep(365 * 24 * time.Hour)
			runDue(t, s)
			job, a := jobOf(t, s, id), attemptsOf(t, s, id)
			if calls != 2 || job.State != Held || job.Reason != "unknown" || job.Error != "no answer" || !job.FinishedAt.IsZero() {
				t.Errorf("%d calls; %+v", calls, job)
			}
			if last := a[len(a)-1]; last.Outcome != OutcomeUnknown || last.Decision != Held || !last.NextAt.IsZero() {
				t.Errorf("%+v", last)
			}
		})
	})
}

func TestAProbeIsAskedBeforeTheHandlerAndItsVerdictIsEvidence(t *testing.T) {
	silent := errors.New("the provider is silent")
	for _, c := range []struct {
		name     string
		verdicts []any // one for each time that it is asked
		outcomes string
		calls    int
		state    State
		reason   string
	}{
		{"yes", []any{Happened}, "unknown/unknown succeeded/probe", 1, Succeeded, "succeeded"},
		{"no", []any{NotHappened}, "unknown/unknown succeeded/ok", 2, Succeeded, "succeeded"},
		{"can't tell", []any{CannotTell}, "unknown/unknown unknown/probe", 1, Held, "unknown"},
		{"nonsense", []any{Verdict("maybe")}, "unknown/unknown unknown/probe", 1, Held, "unknown"},
		{"error, then yes", []any{silent, silent, Happened}, "unknown/unknown retry/error retry/error succeeded/probe", 1, Succeeded, "succeeded"},
		{"error, then no", []any{silent, NotHappened}, "unknown/unknown retry/error succeeded/ok", 2, Succeeded, "succeeded"},
		{"timeout, then yes", []any{context.DeadlineExceeded, Happened}, "unknown/unknown unknown/timeout succeeded/probe", 1, Succeeded, "succeeded"},
		// What nobody could find out in all attempts is not a failure: it is held.
		{"error for ever", []any{silent, silent, silent}, "unknown/unknown retry/error retry/error unknown/error", 1, Held, "unknown"},
		{"a permanent error of the probe", []any{Permanent(silent)}, "unknown/unknown unknown/permanent", 1, Held, "unknown"},
		{"panic, then yes", []any{"panic", Happened}, "unknown/unknown retry/panic succeeded/probe", 1, Succeeded, "succeeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
				asked, calls := 0, 0
				handle(s, "probed", Policy{OnUnknown: UnknownProbe, Retry: Retry{MaxAttempts: 4}, Probe: func(_ context.Context, job *Job) (Verdict, error) {
					asked++
					if job.IdempotencyKey != "key" || job.Attempt != asked+1 {
						t.Errorf("asked about %q in attempt %d", job.IdempotencyKey, job.Attempt)
					}
					switch v := c.verdicts[asked-1].(type) {
					case Verdict:
						return v, nil
					case error:
						return "", v
					default:
						panic(v)
					}
				}}, func(_ context.Context, job *Job) error {
					if calls++; calls == 1 {
						return Unknown(errors.New("no answer"))
					}
					return nil
				})
				id := enqueue(t, s, Kind[struct{}]("probed"), struct{}{}, EnqueueOptions{IdempotencyKey: "key"})
				runUntilIdle(t, s)
				job, a := jobOf(t, s, id), attemptsOf(t, s, id)
				if got := story(t, s, id); got != c.outcomes || calls != c.calls || asked != len(c.verdicts) {
					t.Errorf("%s with %d calls and %d questions; want %s with %d and %d", got, calls, asked, c.outcomes, c.calls, len(c.verdicts))
				}
				if job.State != c.state || job.Reason != c.reason {
					t.Errorf("the job is %s, %s; want %s, %s", job.State, job.Reason, c.state, c.reason)
				}
				last := a[len(a)-1]
				if v, ok := c.verdicts[len(c.verdicts)-1].(Verdict); ok && !strings.Contains(string(last.Note), fmt.Sprintf(`"probe":%q`, v)) {
					t.Errorf("the verdict is not in the evidence: %s", last.Note)
				}
				if last.Decision == Held && !last.NextAt.IsZero() {
					t.Errorf("held, and due at %v", last.NextAt)
				}
				if last.Class == "probe" && !last.StartedAt.IsZero() {
					t.Errorf("the handler is said to have begun at %v", last.StartedAt)
				}
			})
		})
	}
}

func TestAProbeIsNotAskedWithoutADoubt(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		returns := []error{errors.New("no"), Unknown(errors.New("?")), errors.New("no"), nil}
		calls, asked := 0, 0
		handle(s, "probed", Policy{OnUnknown: UnknownProbe, Probe: func(context.Context, *Job) (Verdict, error) {
			asked++
			return NotHappened, nil
		}}, func(context.Context, *Job) error {
			calls++
			return returns[calls-1]
		})
		id := enqueue(t, s, Kind[struct{}]("probed"), struct{}{}, EnqueueOptions{})
		runUntilIdle(t, s)
		if asked != 1 || story(t, s, id) != "retry/error unknown/unknown retry/error succeeded/ok" {
			t.Errorf("asked %d times: %s", asked, story(t, s, id))
		}
	})
}

// script is what a handler does in each of its attempts, and model what must
// come of it, told by other words than decide's.
type scriptStep int

const (
	stepFail scriptStep = iota
	stepUnknown
	stepSnooze
	stepPanic
	stepRetryAfter
	stepTimeout
	stepSucceed
	stepPermanent
	scriptSteps
)

func (s scriptStep) do(ctx context.Context) error {
	switch s {
	case stepFail:
		return errors.New("no")
	case stepUnknown:
		return Unknown(errors.New("?"))
	case stepSnooze:
		return Snooze(90 * time.Minute)
	case stepPanic:
		panic("at the disco")
	case stepRetryAfter:
		return RetryAfter(3*time.Hour, errors.New("later"))
	case stepTimeout:
		<-ctx.Done()
		return ctx.Err()
	case stepPermanent:
		return Permanent(errors.New("never"))
	}
	return nil
}

func TestAnySequenceOfOutcomesEndsAsASimpleModelSays(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const bound = 4
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		scripts := make(map[string][]scriptStep)
		var mu sync.Mutex // guards positions
		positions := make(map[string]int)
		handle(s, "scripted", Policy{Timeout: time.Minute, Retry: Retry{MaxAttempts: bound}}, func(ctx context.Context, job *Job) error {
			mu.Lock()
			step := scripts[job.ID][positions[job.ID]]
			positions[job.ID]++
			mu.Unlock()
			return step.do(ctx)
		})
		for range fewer(300, 80) {
			script := make([]scriptStep, 60)
			for i := range script {
				script[i] = scriptStep(r.IntN(int(scriptSteps)))
			}
			scripts[enqueue(t, s, Kind[struct{}]("scripted"), struct{}{}, EnqueueOptions{})] = script
		}
		closed := runUntilIdle(t, s)

		total := 0
		for id, script := range scripts {
			attempts, failures, want := 0, 0, State("")
			for want == "" {
				step := script[attempts]
				attempts++
				switch step {
				case stepSucceed:
					want = Succeeded
				case stepPermanent:
					want = Dead
				case stepSnooze:
				default:
					if failures++; failures == bound {
						want = Dead
					}
				}
			}
			total += attempts
			if job := jobOf(t, s, id); job.State != want || job.Attempt != attempts || positions[id] != attempts {
				t.Errorf("script %v: %s after %d attempts (%d calls), want %s after %d", script[:attempts], job.State, job.Attempt, positions[id], want, attempts)
			}
		}
		if len(closed) != total {
			t.Errorf("RunDue answered %d attempts, want %d", len(closed), total)
		}
	})
}
