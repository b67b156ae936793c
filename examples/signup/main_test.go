package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// TestMain lets the test binary be the first process, as the program itself is.
func TestMain(m *testing.M) {
	if os.Getenv(firstLifeMark) != "" {
		firstLife()
	}
	os.Exit(m.Run())
}

func TestEverySignUpLeavesItsEvidenceAndNoSecret(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir) // what os.MkdirTemp reads on Unix
	t.Setenv("TMP", dir)    // and on Windows
	var out bytes.Buffer
	if err := run(t.Context(), &out, options{speed: 60, people: people, redact: redact}); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		`died with status 3`,
		`found: event evt-\w+ requested, its job running, attempt 1 begun, and never ended`,
		`acct-1 .* delivered +2: unknown/process_died, succeeded/probe`,
		`acct-8 .* failed +8: retry/http_503 ×7, failed/http_503`,
		`attempt 1 is closed: unknown \(process_died\)`,
		`requested → accepted \(probe of attempt 2\)`,
		`accepted → delivered \(receipt for msg-1\)`,
		`acct-7 .* permanent +after 1 attempt: .* 550 5.1.1 <\[recipient\]>: no such user; not sent: https://signup.example/verify/\[token\]`,
		`acct-8 .* exhausted +after 8 attempts`,
		`acct-9 .* expired +after 1 attempt:`,
		`6 jobs succeeded, 3 are dead \(1 exhausted\), 0 held`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the output lacks %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "@") {
		t.Errorf("an address was printed:\n%s", &out)
	}
	if token := regexp.MustCompile(`[0-9a-f]{64}`).FindString(out.String()); token != "" {
		t.Errorf("%q looks like a token:\n%s", token, &out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestItFailsWhenSomethingIsNotAsItShouldBe(t *testing.T) {
	met, rejected := people[0], people[6]
	otherEnd := rejected
	otherEnd.state = bounced
	for name, c := range map[string]struct {
		people []person
		redact func(string) string
		want   []string
	}{
		"a secret leaks": {[]person{met, rejected}, func(text string) string { return text }, []string{
			"the address of acct-7 is in Rota's tables", "the token of acct-7 is in Rota's tables",
			"the address of acct-7 is in what was printed", "the token of acct-7 is in what was printed",
		}},
		"an event ends in another state": {[]person{met, otherEnd}, redact, []string{"acct-7 (address rejected): failed, job permanent"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), io.Discard, options{speed: 60, people: c.people, redact: c.redact})
			if err == nil {
				t.Fatal("it did not fail")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want %q in it", err, want)
				}
			}
		})
	}
}

func TestTheFirstProcessMustDieWhereItShould(t *testing.T) {
	err := run(t.Context(), io.Discard, options{speed: 60, people: people[6:], redact: redact})
	if err == nil || !strings.Contains(err.Error(), "exit status 1, not with status 3") {
		t.Errorf("got %v", err)
	}
}

func TestTheScheduleIsOneSecondDoublingToSixtyAndAFifth(t *testing.T) {
	policy := schedule(1)
	for i, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		base := time.Duration(seconds) * time.Second
		shortest, longest := policy.Range(i + 1)
		if shortest != base || longest != base+base/5 {
			t.Errorf("after failure %d: %v to %v, want %v to %v", i+1, shortest, longest, base, base+base/5)
		}
	}
	if policy.MaxAttempts != 8 || policy.MaxElapsed != 15*time.Minute {
		t.Errorf("bounds: %d attempts, %v", policy.MaxAttempts, policy.MaxElapsed)
	}
}

// newApp opens the application on a new file, without a provider.
func newApp(t *testing.T, providerURL string) *app {
	t.Helper()
	a, err := openApp(setup{
		Database: filepath.Join(t.TempDir(), "signup.db"), Provider: providerURL,
		Secret: []byte("secret"), Shared: []byte("shared"), Speed: 60,
	}, t.Output(), redact)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// signUpOne signs one account up and returns its event.
func signUpOne(t *testing.T, a *app, who person) (event string) {
	t.Helper()
	if err := a.signUp(t.Context(), who.account, who.email); err != nil {
		t.Fatal(err)
	}
	sheets, err := a.sheets(t.Context())
	if err != nil || len(sheets) != 1 {
		t.Fatalf("%d events, %v", len(sheets), err)
	}
	return sheets[0].event
}

// way is the states that an event has gone through.
func way(t *testing.T, a *app, event string) string {
	t.Helper()
	moves, err := a.transitions(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	states := []string{requested}
	for _, m := range moves {
		states = append(states, m.to)
	}
	return strings.Join(states, " ")
}

func TestAReceiptMovesAnEventOnceAndOnlyFromAccepted(t *testing.T) {
	a := newApp(t, "")
	event := signUpOne(t, a, people[0])
	post := func(body, signature string) int {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set(signatureHeader, signature)
		w := httptest.NewRecorder()
		a.receive(w, r)
		return w.Code
	}
	send := func(body string) int { return post(body, sign(a.Shared, "receipt", body)) }
	const arrived = `{"message":"msg-1","status":"delivered"}`
	for _, step := range []struct {
		what string
		do   func() int
		want int
		way  string
	}{
		{"a receipt that comes before the acceptance is recorded", func() int { return send(arrived) }, 404, "requested"},
		{"the acceptance", func() int {
			err := a.inTx(t.Context(), func(tx *sql.Tx) error { return accept(t.Context(), tx, event, "msg-1", "test") })
			if err != nil {
				t.Error(err)
			}
			return 0
		}, 0, "requested accepted"},
		{"a receipt without a signature", func() int { return post(arrived, "") }, 401, "requested accepted"},
		{"a receipt that is signed with another secret", func() int {
			return post(arrived, sign(a.Secret, "receipt", arrived))
		}, 401, "requested accepted"},
		{"a status that there isn't", func() int { return send(`{"message":"msg-1","status":"failed"}`) }, 400, "requested accepted"},
		{"no JSON", func() int { return send(`delivered`) }, 400, "requested accepted"},
		{"a receipt for another message", func() int { return send(`{"message":"msg-2","status":"delivered"}`) }, 404, "requested accepted"},
		{"the receipt", func() int { return send(arrived) }, 200, "requested accepted delivered"},
		{"the receipt, again", func() int { return send(arrived) }, 200, "requested accepted delivered"},
		{"a receipt to the contrary", func() int { return send(`{"message":"msg-1","status":"bounced"}`) }, 409, "requested accepted delivered"},
	} {
		if got := step.do(); got != step.want {
			t.Errorf("%s: answered with %d, want %d", step.what, got, step.want)
		}
		if got := way(t, a, event); got != step.way {
			t.Errorf("%s: the event's way is %q, want %q", step.what, got, step.way)
		}
	}
}

func TestTransitionsAreNeitherEditedNorRemoved(t *testing.T) {
	a := newApp(t, "")
	event := signUpOne(t, a, people[0])
	err := a.inTx(t.Context(), func(tx *sql.Tx) error { return accept(t.Context(), tx, event, "msg-1", "test") })
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{`UPDATE transitions SET cause = 'another'`, `DELETE FROM transitions`} {
		if _, err := a.jobs.DB().ExecContext(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "a transition is never") {
			t.Errorf("%s: %v, want a refusal", statement, err)
		}
	}
}

func TestASignUpThatFailsLeavesNoJob(t *testing.T) {
	a := newApp(t, "")
	signUpOne(t, a, people[0])
	if err := a.signUp(t.Context(), people[0].account, "another@mail.example"); err == nil {
		t.Error("one account signed up twice")
	}
	stats, err := a.jobs.Stats(t.Context())
	if err != nil || stats.States[rota.Pending] != 1 {
		t.Errorf("%d jobs are pending, %v; want 1", stats.States[rota.Pending], err)
	}
}

func TestAReplayOfAFailedEventSendsNothing(t *testing.T) {
	who := people[6]
	who.plan = []answer{reject, takeIt}
	p, err := startProvider([]person{who}, []byte("shared"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	a := newApp(t, p.url)
	event := signUpOne(t, a, who)
	work := func() {
		t.Helper()
		if _, err := a.jobs.RunDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		if open, err := a.settle(t.Context()); err != nil || open != 0 {
			t.Fatalf("%d events are open, %v", open, err)
		}
	}
	work()
	dead, err := a.job(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	again, err := a.jobs.Replay(t.Context(), dead.ID, rota.ReplayOptions{})
	if err != nil {
		t.Fatal(err)
	}
	work()
	job, err := a.jobs.Job(t.Context(), again.ID)
	if err != nil {
		t.Fatal(err)
	}
	if job.State != rota.Dead || job.Reason != "permanent" || p.asked(event) != 1 || len(p.mails()) != 0 {
		t.Errorf("the replay is %s (%s), the provider was asked %d times and sent %d mails",
			job.State, job.Reason, p.asked(event), len(p.mails()))
	}
	if got := way(t, a, event); got != "requested failed" {
		t.Errorf("the event's way is %q", got)
	}
}

func TestARecipientIsRecognisedByItsHashOnlyWithTheSecret(t *testing.T) {
	a, b := &app{setup: setup{Secret: []byte("one")}}, &app{setup: setup{Secret: []byte("two")}}
	if a.recipientHash("Ada@Mail.example ") != a.recipientHash("ada@mail.example") {
		t.Error("two spellings of an address have two hashes")
	}
	if a.recipientHash("ada@mail.example") == b.recipientHash("ada@mail.example") {
		t.Error("the hash does not depend on the secret")
	}
	if a.token("x") == a.recipientHash("x") {
		t.Error("a token is a recipient's hash")
	}
}

func TestItEndsWhenItIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	out := writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("found: event")) {
			cancel(stop)
		}
		return len(p), nil
	})
	if err := run(ctx, out, options{speed: 60, people: people, redact: redact}); !errors.Is(err, context.Canceled) && !errors.Is(err, stop) {
		t.Errorf("got %v, want %v", err, stop)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
