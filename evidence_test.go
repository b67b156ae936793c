package rota

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestTextBecomesOneHarmlessLine(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"plain", "it failed", "it failed"},
		{"letters of the world", "naïve Größe 東京 🙂", "naïve Größe 東京 🙂"},
		{"lines", "a\nb\r\nc\td", `a\nb\x0d\nc\td`},
		{"terminal", "\x1b[2J\x1b]0;owned\a", `\x1b[2J\x1b]0;owned\x07`},
		{"NUL and DEL", "a\x00b\x7f", `a\x00b\x7f`},
		{"C1 controls", "a\u0085b\u009bc", `a\u0085b\u009bc`},
		{"right to left", "user\u202egnp.exe", `user\u202egnp.exe`},
		{"isolates", "\u2066x\u2069", `\u2066x\u2069`},
		{"hidden", "a\u200bb\ufeffc\u00ad", `a\u200bb\ufeffc\u00ad`},
		{"line separators", "a\u2028b\u2029c", `a\u2028b\u2029c`},
		{"no-break space", "a\u00a0b", `a\u00a0b`},
		{"broken UTF-8", "a\xff\xfeb\xc3", `a\xff\xfeb\xc3`},
		{"half a surrogate", "\xed\xa0\x80", `\xed\xa0\x80`},
		{"replacement character", "a\ufffdb", `a\ufffdb`},
		{"empty", "", ""},
	} {
		if got := safeText(c.text, maxErrorText, nil); got != c.want {
			t.Errorf("%s: %q became %q, want %q", c.name, c.text, got, c.want)
		}
	}
}

// checkSafe says what is wrong with a text that is to be shown to people.
func checkSafe(text string, limit int) error {
	switch {
	case len(text) > limit:
		return fmt.Errorf("%d bytes, more than %d", len(text), limit)
	case !utf8.ValidString(text):
		return errors.New("it is no UTF-8")
	}
	for i, r := range text {
		if r != ' ' && !unicode.IsPrint(r) {
			return fmt.Errorf("%U at %d", r, i)
		}
	}
	return nil
}

func TestNoTextIsTooLongOrTooStrange(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	alphabet := []string{"a", " ", "password=", "https://u:p@h/", "\x00", "\n", "\u202e", "\xff", "é", "🙂", "\\", `"`, "'", "@", ":", "&"}
	for range fewer(400, 100) {
		var b strings.Builder
		for n := r.IntN(3_000); b.Len() < n; {
			if r.IntN(2) == 0 {
				b.WriteByte(byte(r.IntN(256)))
			} else {
				b.WriteString(alphabet[r.IntN(len(alphabet))])
			}
		}
		for _, limit := range []int{104, 200, maxErrorText, maxStack} {
			got := safeText(b.String(), limit, nil)
			if err := checkSafe(got, limit); err != nil {
				t.Fatalf("limit %d: %v\n%q\nbecame\n%q", limit, err, b.String(), got)
			}
		}
	}
}

func TestALongTextKeepsItsHeadItsTailAndItsBounds(t *testing.T) {
	for _, n := range []int{maxErrorText, maxErrorText + 1, 10_000, 100_000, 50 << 20} {
		text := "HEAD" + strings.Repeat("x", n-8) + "TAIL"
		began := time.Now()
		got := safeText(text, maxErrorText, func(s string) string {
			if len(s) > 64<<10 {
				t.Errorf("%d bytes: the hook gets %d of them", n, len(s))
			}
			return s
		})
		if err := checkSafe(got, maxErrorText); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		if !strings.HasPrefix(got, "HEAD") || !strings.HasSuffix(got, "TAIL") || (n > maxErrorText) != strings.Contains(got, "bytes omitted") {
			t.Errorf("%d bytes became %q", n, got)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("%d bytes took %v", n, d)
		}
	}
	// Characters that a cut would halve.
	for shift := range 4 {
		text := strings.Repeat("x", shift) + strings.Repeat("🙂", 1000)
		if err := checkSafe(safeText(text, maxErrorText, nil), maxErrorText); err != nil {
			t.Errorf("shifted by %d: %v", shift, err)
		}
	}
}

func TestCredentialsAreMaskedWhereverTheyStand(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		`Get "https://user:hunter2@host/path?x=1": dial tcp`,
		`postgres://app:hunter2@db:5432/app?sslmode=disable`,
		`https://hunter2@github.com/org/repo.git`,
		`redis://:hunter2@cache:6379/0`,
		`https://user:p@hunter2@host/`,
		`https://user:hunter2%2F@host`,
		`parse "postgres://app:abc/hunter2+x@db/app": invalid port ":abc" after host`,
		`https://host/x?token=hunter2&y=1`,
		`https://host/x?y=1&access_token=hunter2`,
		`https://host/x?api_key=hunter2#top`,
		`https://host/x?key=hunter2&y=1`,
		`https://s3.example/b?X-Amz-Signature=hunter2&X-Amz-Date=1`,
		`https://blob.example/c?sv=1&sig=hunter2`,
		`Authorization: Bearer hunter2hunter2`,
		`Authorization: Basic hunter2`,
		`authorization:hunter2`,
		`Authorization=Token hunter2`,
		`got 401 with bearer hunter2.hunter2.hunter2`,
		`{"password":"hunter2"}`,
		`{"password": "correct horse hunter2 staple", "user": "x"}`,
		`{"password": "with \" quote hunter2"}`,
		`{\"password\":\"hunter2\"}`,
		`{"refreshToken":"hunter2","clientSecret":"hunter2"}`,
		`{"access_token" : "hunter2"}`,
		`password='my hunter2'`,
		`PASSWORD = hunter2`,
		`pwd:hunter2;database=x`,
		`client_secret=hunter2, scope=all`,
		`X-Api-Key: hunter2`,
		`aws_secret_access_key=hunter2`,
		`jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2 expired`,
	} {
		got := safeText(text, maxErrorText, nil)
		if strings.Contains(got, secret) || !strings.Contains(got, "***") {
			t.Errorf("%s\nis shown as\n%s", text, got)
		}
	}
}

func TestMasksLeaveAloneWhatIsNoSecret(t *testing.T) {
	for _, text := range []string{
		`Get "https://host:8080/path?invoice=7": connection refused`,
		`http://registry:4873/@scope/pkg not found`,
		`mail to jo@example.com bounced: 550 5.1.1`,
		`tokens: 5 of 7 used`,
		`the signatures differ`,
		`design=blue keyboard=qwertz`,
		`time 12:30:45 at position 3:14`,
		`unique_key="invoice:42"`,
	} {
		if got := safeText(text, maxErrorText, nil); got != text {
			t.Errorf("%s\nbecame\n%s", text, got)
		}
	}
}

func TestTheRedactHookSeesEveryTextOfOutsideOrigin(t *testing.T) {
	const secret = "4711-0815"
	cfg := Config{Redact: func(s string) string { return strings.ReplaceAll(s, secret, "[card]") }}
	s := open(t, cfg)
	Handle(s, Kind[string]("leaky"), func(_ context.Context, job *Job, how string) error {
		job.Note("text", "card "+secret)
		job.Note("error", errors.New("card "+secret))
		job.Note("nested", map[string]any{"cards": []string{secret}, secret: 1})
		job.Note("key "+secret, 1)
		switch how {
		case "panic":
			panic("card " + secret)
		case "panic with a value":
			panic(fmt.Errorf("card %s", secret))
		}
		return fmt.Errorf("card %s", secret)
	}, Policy{Retry: Retry{MaxAttempts: 1}})
	ids := []string{}
	for _, how := range []string{"error", "panic", "panic with a value"} {
		ids = append(ids, enqueue(t, s, Kind[string]("leaky"), how, EnqueueOptions{}))
	}
	for _, a := range runDue(t, s) {
		if shown := fmt.Sprintf("%+v %s", a, a.Note); strings.Contains(shown, secret) {
			t.Errorf("RunDue shows %s", shown)
		}
	}
	for _, id := range ids {
		job, a := jobOf(t, s, id), attemptsOf(t, s, id)[0]
		if shown := fmt.Sprintf("%s %+v %s", job.Error, a, a.Note); strings.Contains(shown, secret) {
			t.Errorf("the table shows %s", shown)
		}
		if !strings.Contains(a.Error, "[card]") || strings.Count(string(a.Note), "[card]") != 5 {
			t.Errorf("error %q, note %s", a.Error, a.Note)
		}
	}
}

func TestAHookThatPanicsShowsNothingAndEndsNothing(t *testing.T) {
	s := open(t, Config{Redact: func(s string) string { return s[len(s)+1:] }})
	handle(s, "leaky", Policy{}, func(_ context.Context, job *Job) error {
		job.Note("card", "4711")
		return Permanent(errors.New("card 4711"))
	})
	id := enqueue(t, s, Kind[struct{}]("leaky"), struct{}{}, EnqueueOptions{})
	runDue(t, s)
	a := attemptsOf(t, s, id)[0]
	if want := "withheld: the Redact hook panicked on 9 bytes"; a.Error != want || strings.Contains(string(a.Note), "4711") {
		t.Errorf("error %q, note %s", a.Error, a.Note)
	}
}

func TestAHandlerCanNotChangeItsEvidenceThroughItsJob(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		handle(s, "scribbles", Policy{}, func(_ context.Context, job *Job) error {
			*job.Retry = Retry{MaxAttempts: 99}
			job.Labels["a"] = "changed"
			copy(job.Args, "[]")
			*job = Job{ID: "another", Attempt: 77}
			return errors.New("no")
		})
		id := enqueue(t, s, Kind[struct{}]("scribbles"), struct{}{}, EnqueueOptions{Group: "g", Labels: map[string]string{"a": "b"}, Retry: &Retry{MaxAttempts: 2}})
		closed := runUntilIdle(t, s)
		if got := story(t, s, id); got != "retry/error failed/error" || state(t, s, id) != Dead || len(closed) != 2 || closed[1].JobID != id {
			t.Errorf("%s: %s; %+v", state(t, s, id), got, closed)
		}
	})
}

type shyError struct{}

func (shyError) Error() string { panic("I would rather not say") }

func TestAnErrorThatPanicsWhenReadIsAnAnswerToo(t *testing.T) {
	s := open(t, Config{})
	handle(s, "shy", Policy{}, func(context.Context, *Job) error { return Permanent(shyError{}) })
	handle(s, "nil", Policy{}, func(context.Context, *Job) error {
		var e *shyPointer
		return Permanent(e)
	})
	for _, kind := range []Kind[struct{}]{"shy", "nil"} {
		id := enqueue(t, s, kind, struct{}{}, EnqueueOptions{})
		runDue(t, s)
		if a := attemptsOf(t, s, id)[0]; a.Decision != Dead || !strings.Contains(a.Error, "its Error method panicked") {
			t.Errorf("%s: %+v", kind, a)
		}
	}
}

type shyPointer struct{ text string }

func (e *shyPointer) Error() string { return e.text }

func TestAPanicKeepsItsStack(t *testing.T) {
	s := open(t, Config{})
	handle(s, "panics", Policy{Retry: Retry{MaxAttempts: 2, Base: time.Nanosecond}}, func(_ context.Context, job *Job) error {
		if job.Attempt == 1 {
			deepPanic(100)
		}
		noMap()["x"] = 1
		return nil
	})
	id := enqueue(t, s, Kind[struct{}]("panics"), struct{}{}, EnqueueOptions{})
	stop := start(t, s)
	waitFor(t, "the job is dead", func() bool { return state(t, s, id) == Dead })
	stop()
	a := attemptsOf(t, s, id)
	if a[0].Class != "panic" || a[0].Outcome != OutcomeRetry || !strings.Contains(a[0].Error, "panic: how deep") || !strings.Contains(a[0].Stack, "deepPanic") {
		t.Errorf("%+v", a[0])
	}
	if err := checkSafe(a[0].Stack, maxStack); err != nil {
		t.Errorf("stack: %v", err)
	}
	if a[1].Outcome != OutcomeFailed || !strings.Contains(a[1].Error, "assignment to entry in nil map") || !strings.Contains(a[1].Stack, "TestAPanicKeepsItsStack") {
		t.Errorf("%+v", a[1])
	}
}

func noMap() map[string]int { return nil }

func deepPanic(n int) {
	if n == 0 {
		panic("how deep")
	}
	deepPanic(n - 1)
}

func TestNotesAreKeptWithinTheirBounds(t *testing.T) {
	noted := func(t *testing.T, note func(job *Job)) map[string]any {
		t.Helper()
		s := open(t, Config{})
		handle(s, "notes", Policy{}, func(_ context.Context, job *Job) error {
			note(job)
			return nil
		})
		id := enqueue(t, s, Kind[struct{}]("notes"), struct{}{}, EnqueueOptions{})
		runDue(t, s)
		raw := attemptsOf(t, s, id)[0].Note
		if raw == nil {
			return nil
		}
		if len(raw) > maxNote+100 {
			t.Errorf("%d bytes of notes", len(raw))
		}
		var all map[string]any
		if err := json.Unmarshal(raw, &all); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		return all
	}
	if got := noted(t, func(*Job) {}); got != nil {
		t.Errorf("without a note: %v", got)
	}
	got := noted(t, func(job *Job) {
		job.Note("text", "a\nb\xff")
		job.Note("number", int64(math.MaxInt64))
		job.Note("list", []int{1, 2})
		job.Note("none", nil)
		job.Note("impossible", make(chan int))
		job.Note("infinite", math.Inf(1))
		job.Note("error", fmt.Errorf("send: %w", sql.ErrNoRows))
		job.Note("bad\x00key", true)
		job.Note("text", "the last one counts")
	})
	if got["text"] != "the last one counts" || got["number"] != float64(math.MaxInt64) || got["error"] != "send: sql: no rows in result set" ||
		got[`bad\x00key`] != true || !strings.HasPrefix(fmt.Sprint(got["impossible"]), "not noted: ") || !strings.HasPrefix(fmt.Sprint(got["infinite"]), "not noted: ") {
		t.Errorf("%v", got)
	}
	if _, ok := got["none"]; !ok || len(got) != 8 {
		t.Errorf("%v", got)
	}
	// The same note again and again takes no more room.
	got = noted(t, func(job *Job) {
		for i := range 10_000 {
			job.Note("progress", i)
		}
	})
	if len(got) != 1 || got["progress"] != float64(9_999) {
		t.Errorf("progress: %v", got)
	}
	// Too much of them, and too much of one.
	got = noted(t, func(job *Job) {
		for i := range 3_000 {
			job.Note(fmt.Sprintf("k%d", i), "<&>")
		}
	})
	if lost, _ := got["rota_notes_lost"].(float64); lost == 0 || int(lost)+len(got)-1 != 3_000 {
		t.Errorf("%d notes kept, %v lost", len(got)-1, got["rota_notes_lost"])
	}
	got = noted(t, func(job *Job) { job.Note("huge", make([]int, 50_000)) })
	if len(got) != 1 || got["rota_notes_lost"] != 1.0 {
		t.Errorf("one huge note: %v", got)
	}
	// A note of something that the handler goes on to use.
	type parcel struct{ Card string }
	mine := &parcel{"password=x"}
	noted(t, func(job *Job) { job.Note("parcel", mine) })
	if mine.Card != "password=x" {
		t.Errorf("the handler's own value became %q", mine.Card)
	}
}

func TestNotesOfManyGoroutinesAndOfLateOnesDoNoHarm(t *testing.T) {
	s := open(t, Config{})
	late := make(chan *Job, 1)
	handle(s, "notes", Policy{}, func(_ context.Context, job *Job) error {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { job.Note(fmt.Sprintf("n%d", i), i) })
		}
		wg.Wait()
		late <- job
		return nil
	})
	id := enqueue(t, s, Kind[struct{}]("notes"), struct{}{}, EnqueueOptions{})
	runDue(t, s)
	(<-late).Note("late", true)
	var got map[string]int
	if err := json.Unmarshal(attemptsOf(t, s, id)[0].Note, &got); err != nil || len(got) != 20 {
		t.Errorf("%v, %v", got, err)
	}
	new(Job).Note("of no handler", 1) // as a job that was read by Jobs has
	if err := new(Job).CompleteTx(context.Background(), nil); !errors.Is(err, ErrState) {
		t.Errorf("complete a job that no handler has: %v", err)
	}
}

// dump is every column of the selected rows, exactly.
func dump(t testing.TB, db *sql.DB, table, where string, args ...any) string {
	t.Helper()
	rows, err := db.Query("SELECT * FROM "+table+" WHERE "+where+" ORDER BY 1, 2", args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		if err := rows.Scan(values...); err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			fmt.Fprintf(&b, "%s=%#v ", columns[i], *v.(*any))
		}
		b.WriteByte('\n')
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestClosedEvidenceCanNotBeChangedByPlainSQL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rota.db")
	s := openAt(t, path, Config{})
	handle(s, "two.attempts", Policy{Retry: Retry{Base: time.Hour}}, func(context.Context, *Job) error { return errors.New("no") })
	handle(s, "dies", Policy{}, func(context.Context, *Job) error { return Permanent(errors.New("no")) })
	pending := enqueue(t, s, Kind[struct{}]("two.attempts"), struct{}{}, EnqueueOptions{})
	ended := enqueue(t, s, Kind[struct{}]("dies"), struct{}{}, EnqueueOptions{UniqueKey: "k"})
	runDue(t, s)
	if err := s.Cancel(t.Context(), pending, By{Actor: "anna", Reason: "test"}); err != nil {
		t.Fatal(err)
	}

	// Another program, with a connection of its own.
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const all = "1 = 1"
	before := dump(t, db, "rota_attempts", all) + dump(t, db, "rota_jobs", all) + dump(t, db, "rota_actions", all)
	columns, err := texts(t.Context(), db, `SELECT name FROM pragma_table_info('rota_attempts')`)
	if err != nil {
		t.Fatal(err)
	}
	attacks := []string{
		`DELETE FROM rota_attempts`,
		`DELETE FROM rota_attempts WHERE outcome = 'failed'`,
		`REPLACE INTO rota_attempts (job_id, number, runner, token, claimed_at) SELECT job_id, number, 'x', 1, 1 FROM rota_attempts`,
		`INSERT OR REPLACE INTO rota_attempts SELECT * FROM rota_attempts`,
		`INSERT INTO rota_attempts SELECT * FROM rota_attempts WHERE true ON CONFLICT (job_id, number) DO UPDATE SET outcome = 'succeeded'`,
		`UPDATE OR REPLACE rota_attempts SET number = 1 - number`,
		`DELETE FROM rota_actions`,
		`UPDATE rota_actions SET actor = 'somebody else'`,
		`REPLACE INTO rota_actions (seq, at, actor, action, reason) SELECT seq, at, 'somebody else', action, reason FROM rota_actions`,
		`UPDATE rota_jobs SET state = 'pending', finished_at = NULL WHERE state = 'dead'`,
		`UPDATE rota_jobs SET args = '{}' WHERE state = 'dead'`,
		`UPDATE rota_jobs SET error = NULL WHERE state = 'cancelled'`,
		`DELETE FROM rota_jobs WHERE state = 'dead'`,
	}
	for _, column := range columns {
		attacks = append(attacks, fmt.Sprintf("UPDATE rota_attempts SET %s = %[1]s", column))
	}
	for _, attack := range attacks {
		if _, err := db.Exec(attack); err == nil || !strings.Contains(err.Error(), "rota: ") {
			t.Errorf("%s: %v", attack, err)
		}
	}
	if after := dump(t, db, "rota_attempts", all) + dump(t, db, "rota_jobs", all) + dump(t, db, "rota_actions", all); after != before {
		t.Errorf("the tables were\n%s\nand are\n%s", before, after)
	}
	if job := jobOf(t, s, ended); job.State != Dead {
		t.Errorf("the dead job is %s", job.State)
	}
}

func TestAnOpenAttemptCanNotTakeAClosedOnesPlace(t *testing.T) {
	s := open(t, Config{})
	release := make(chan struct{})
	handle(s, "two", Policy{Retry: Retry{Base: 1, Cap: 1}}, func(_ context.Context, job *Job) error {
		if job.Attempt == 1 {
			return errors.New("no")
		}
		<-release
		return nil
	})
	id := enqueue(t, s, Kind[struct{}]("two"), struct{}{}, EnqueueOptions{})
	stop := start(t, s)
	waitFor(t, "the second attempt runs", func() bool { return jobOf(t, s, id).Attempt == 2 })
	for _, attack := range []string{
		`UPDATE OR REPLACE rota_attempts SET number = 1 WHERE outcome IS NULL`,
		`UPDATE rota_attempts SET job_id = 'another' WHERE outcome IS NULL`,
		`DELETE FROM rota_attempts WHERE outcome IS NULL`,
		`UPDATE rota_jobs SET attempt = 0`,
		`UPDATE rota_jobs SET id = 'another'`,
	} {
		if _, err := s.DB().Exec(attack); err == nil || !strings.Contains(err.Error(), "rota: ") {
			t.Errorf("%s: %v", attack, err)
		}
	}
	close(release)
	waitFor(t, "the job has ended", func() bool { return state(t, s, id) == Succeeded })
	stop()
	if got := story(t, s, id); got != "retry/error succeeded/ok" {
		t.Errorf("%s", got)
	}
}

func TestTheStartIsOnRecordBeforeAHandlerThatMustNotBeRepeatedBegins(t *testing.T) {
	for _, policy := range []OnUnknown{UnknownRetry, UnknownHold, UnknownProbe} {
		s := open(t, Config{})
		var seen []Attempt
		handle(s, "marked", Policy{OnUnknown: policy, Probe: func(context.Context, *Job) (Verdict, error) { return CannotTell, nil }},
			func(ctx context.Context, job *Job) (err error) {
				seen, err = s.Attempts(ctx, job.ID)
				return err
			})
		enqueue(t, s, Kind[struct{}]("marked"), struct{}{}, EnqueueOptions{})
		runDue(t, s)
		if len(seen) != 1 || seen[0].StartedAt.IsZero() || seen[0].Outcome != "" || !seen[0].FinishedAt.IsZero() {
			t.Errorf("%s: in the handler the evidence was %+v", policy, seen)
		}
	}
}

func TestWhatRunDueAnswersIsWhatStandsInTheTable(t *testing.T) {
	t.Parallel()
	// Every way in which an attempt can end, with every kind of jitter.
	for _, jitter := range []Jitter{NoJitter(), Full(), Fraction(1.0 / 3), Plus(9 * time.Second)} {
		bubble(t, Config{Unwind: time.Second}, func(t *testing.T, s *Scheduler) {
			release := make(chan struct{})
			if _, err := s.DB().Exec(`CREATE TABLE effects (id TEXT)`); err != nil {
				t.Fatal(err)
			}
			Handle(s, Kind[string]("any"), func(ctx context.Context, job *Job, what string) error {
				job.Note("what", what)
				switch what {
				case "success":
					return nil
				case "fail":
					return errors.New("no")
				case "permanent":
					return Permanent(errors.New("no"))
				case "snooze":
					if job.Attempt > 1 {
						return nil
					}
					return Snooze(1500 * time.Nanosecond)
				case "retry after":
					return RetryAfter(1234567*time.Nanosecond, errors.New("no"))
				case "unknown":
					return Unknown(errors.New("no"))
				case "panic":
					panic("no")
				case "timeout":
					<-ctx.Done()
					return ctx.Err()
				case "hang":
					<-release
					return nil
				}
				return completeWith(ctx, s, job, what)
			}, Policy{Timeout: time.Minute, Retry: Retry{Base: 1500 * time.Nanosecond, Factor: 1000, MaxAttempts: 3, Jitter: jitter}})
			for _, what := range []string{"success", "fail", "permanent", "snooze", "retry after", "unknown", "panic", "timeout", "hang",
				"commit", "commit and fail", "commit late", "roll back", "forget"} {
				enqueue(t, s, Kind[string]("any"), what, EnqueueOptions{})
			}
			var closed []Attempt
			for range 20 {
				some, err := s.RunDue(t.Context())
				if err != nil && !errors.Is(err, ErrHandlersLeft) {
					t.Fatal(err)
				}
				closed = append(closed, some...)
				time.Sleep(time.Minute)
			}
			close(release)
			synctest.Wait() // until they have returned

			if !slices.IsSortedFunc(closed, func(a, b Attempt) int { return a.FinishedAt.Compare(b.FinishedAt) }) {
				t.Error("they are not in the order of their ends")
			}
			var stored []Attempt
			for id := range jobIDs(t, s, Filter{}) {
				stored = append(stored, attemptsOf(t, s, id)...)
			}
			order := func(a, b Attempt) int {
				return strings.Compare(fmt.Sprint(a.JobID, a.Number), fmt.Sprint(b.JobID, b.Number))
			}
			slices.SortFunc(stored, order)
			slices.SortStableFunc(closed, order)
			for i := range max(len(stored), len(closed)) {
				if i >= min(len(stored), len(closed)) {
					t.Errorf("RunDue answered %d attempts, the table has %d", len(closed), len(stored))
					break
				}
				if got, want := fmt.Sprintf("%+v %s", closed[i], closed[i].Note), fmt.Sprintf("%+v %s", stored[i], stored[i].Note); got != want {
					t.Errorf("RunDue: %s\n  table: %s", got, want)
				}
			}
		})
	}
}

var errAfterCommit = errors.New("and then it failed")

// completeWith makes an effect in the database and completes the job with it,
// in several ways, of which some are wrong.
func completeWith(ctx context.Context, s *Scheduler, job *Job, how string) error {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, job.ID); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := job.CompleteTx(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	switch how {
	case "roll back":
		return tx.Rollback()
	case "forget": // ctx ends it when the handler has returned
		return nil
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	job.Note("after", "the commit")
	switch how {
	case "commit and fail":
		return errAfterCommit
	case "commit and panic":
		panic(errAfterCommit)
	case "commit late":
		time.Sleep(time.Second)
	}
	return nil
}
