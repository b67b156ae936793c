package rota

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func init() {
	// enqueue-unique PATH KEY: waits for a word, then enqueues from 50
	// goroutines with the same key and prints each answer.
	childRoles["enqueue-unique"] = func(args []string) {
		s, err := Open(args[0], Config{})
		if err != nil {
			childFatal(err)
		}
		defer s.Close()
		fmt.Println("ready")
		<-childInput
		ctx := childContext()
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				answer, err := Kind[int]("unique").Enqueue(ctx, s, i, EnqueueOptions{UniqueKey: args[1]})
				if err != nil {
					childFatal(err)
				}
				fmt.Println(answer.ID, answer.Duplicate)
			})
		}
		wg.Wait()
	}
}

func TestAUniqueKeyHasOneJobAmongTwoProcessesOfFiftyCallersEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	s := openAt(t, path, Config{})
	const key = "invoice:42 \"quoted\" ключ"
	children := []*child{startChild(t, "enqueue-unique", path, key), startChild(t, "enqueue-unique", path, key)}
	for _, c := range children {
		c.expect("ready")
	}
	for _, c := range children {
		c.say("go")
	}
	ids, first := make(map[string]int), 0
	for _, c := range children {
		for range 50 {
			var id string
			var duplicate bool
			if _, err := fmt.Sscan(c.line(), &id, &duplicate); err != nil {
				t.Fatal(err)
			}
			ids[id]++
			if !duplicate {
				first++
			}
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	}
	if len(ids) != 1 || first != 1 {
		t.Errorf("%d ids and %d that were told to be the first, want 1 and 1: %v", len(ids), first, ids)
	}
	for id := range ids {
		if job, err := s.Job(t.Context(), id); err != nil || job.UniqueKey != key {
			t.Errorf("job %s: %v, %v", id, job, err)
		}
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

func TestAUniqueKeyIsTakenWhileItsJobLives(t *testing.T) {
	const kind Kind[string] = "unique"
	for _, c := range []struct {
		state State
		once  bool
		taken bool
	}{
		{Pending, false, true}, {Running, false, true}, {Held, false, true},
		{Succeeded, false, false}, {Dead, false, false}, {Cancelled, false, false},
		{Pending, true, true}, {Running, true, true}, {Held, true, true},
		{Succeeded, true, true}, {Dead, true, true}, {Cancelled, true, true},
	} {
		t.Run(fmt.Sprintf("%s, once %v", c.state, c.once), func(t *testing.T) {
			s := open(t, Config{})
			opts := EnqueueOptions{UniqueKey: "k", Once: c.once}
			again := func() Enqueued {
				answer, err := kind.Enqueue(t.Context(), s, "", EnqueueOptions{UniqueKey: "k"})
				if err != nil {
					t.Error(err)
				}
				return answer
			}
			var whileRunning Enqueued
			Handle(s, kind, func(ctx context.Context, job *Job, want string) error {
				switch State(want) {
				case Running:
					whileRunning = again()
				case Held:
					return Unknown(errors.New("the answer was lost"))
				case Dead:
					return Permanent(errors.New("no such account"))
				}
				return nil
			}, Policy{OnUnknown: UnknownHold})
			first, err := kind.Enqueue(t.Context(), s, string(c.state), opts)
			if err != nil || first.Duplicate {
				t.Fatalf("the first enqueue: %+v, %v", first, err)
			}
			switch c.state {
			case Pending:
			case Cancelled:
				err = s.Cancel(t.Context(), first.ID, By{})
			default:
				_, err = s.RunDue(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			second := whileRunning
			if c.state != Running {
				if now := state(t, s, first.ID); now != c.state {
					t.Fatalf("the first job is %s, not %s", now, c.state)
				}
				second = again()
			}
			if second.Duplicate != c.taken || (second.ID == first.ID) != c.taken {
				t.Errorf("first %+v, second %+v; the key is taken: %v", first, second, c.taken)
			}
		})
	}
}

func TestAUniqueKeyIsTheKindsOwn(t *testing.T) {
	s := open(t, Config{})
	for _, kind := range []Kind[int]{"a", "b", "A"} {
		for i, key := range []string{"k", "K", "k "} {
			answer, err := kind.Enqueue(t.Context(), s, i, EnqueueOptions{UniqueKey: key})
			if err != nil || answer.Duplicate {
				t.Errorf("%s %q: %+v, %v", kind, key, answer, err)
			}
		}
	}
}

func TestDuplicatesInOneEnqueueManyAnswerWithTheFirst(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[int] = "many"
	before, err := kind.Enqueue(t.Context(), s, 0, EnqueueOptions{UniqueKey: "before"})
	if err != nil {
		t.Fatal(err)
	}
	var entries []Entry[int]
	for i, key := range []string{"x", "", "before", "x", "", "y"} {
		entries = append(entries, Entry[int]{i, EnqueueOptions{UniqueKey: key, Group: "g"}})
	}
	answers, err := kind.EnqueueMany(t.Context(), s, entries...)
	if err != nil {
		t.Fatal(err)
	}
	var duplicates []bool
	for _, a := range answers {
		duplicates = append(duplicates, a.Duplicate)
	}
	if want := []bool{false, false, true, true, false, false}; !slices.Equal(duplicates, want) {
		t.Errorf("duplicates %v, want %v", duplicates, want)
	}
	if answers[2].ID != before.ID || answers[3].ID != answers[0].ID || answers[1].ID == answers[4].ID {
		t.Errorf("answers: %+v; the earlier job: %s", answers, before.ID)
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 5 {
		t.Errorf("%d jobs, want 5", n)
	}
	if none, err := kind.EnqueueMany(t.Context(), s); err != nil || len(none) != 0 {
		t.Errorf("none at all: %v, %v", none, err)
	}
}

func TestEnqueueManyIsAllOrNone(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[any] = "many"
	for what, bad := range map[string]Entry[any]{
		"unencodable arguments": {Args: math.NaN()},
		"large arguments":       {Args: strings.Repeat("x", 1<<20)},
		"a wrong option":        {EnqueueOptions: EnqueueOptions{Priority: 1001}},
	} {
		answers, err := kind.EnqueueMany(t.Context(), s, Entry[any]{Args: 1}, bad, Entry[any]{Args: 2})
		if !errors.Is(err, ErrInvalid) || answers != nil {
			t.Errorf("%s: %v, %v", what, answers, err)
		}
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 0 {
		t.Errorf("%d jobs were enqueued all the same", n)
	}
}

func TestJobsOfAGroupRunOneAtATimeInTheOrderOfTheirTimeAndArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{PollInterval: -1, LeaseTTL: time.Hour})
		const kind Kind[string] = "ordered"
		var mu sync.Mutex
		ran, atOnce := make(map[string][]string), make(map[string]int)
		Handle(s, kind, func(ctx context.Context, job *Job, name string) error {
			mu.Lock()
			ran[job.Group] = append(ran[job.Group], name)
			if atOnce[job.Group]++; atOnce[job.Group] > 1 {
				t.Errorf("%d jobs of group %q run at once", atOnce[job.Group], job.Group)
			}
			mu.Unlock()
			time.Sleep(time.Second) // of the bubble: long enough to overlap
			mu.Lock()
			defer mu.Unlock()
			atOnce[job.Group]--
			return nil
		}, Policy{})
		now := time.Now()
		for _, e := range []struct {
			name, group string
			at          time.Time
			priority    int
		}{
			{"third", "a", now.Add(2 * time.Hour), 0},
			{"fourth", "a", now.Add(3 * time.Hour), 1000}, // in a group, time is stronger than priority
			{"second", "a", now.Add(time.Hour), 0},
			{"first", "a", time.Time{}, -1000},
			{"fifth", "a", now.Add(3 * time.Hour), 0},
			{"first", "b", time.Time{}, 0},
			{"second", "b", now.Add(-time.Hour), 0}, // at once, which is when it comes
			{"third", "b", time.Time{}, 0},
		} {
			opts := EnqueueOptions{Group: e.group, RunAt: e.at, Priority: e.priority}
			if _, err := kind.Enqueue(t.Context(), s, e.name, opts); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Microsecond) // the times that are stored differ
		}
		for range 4 {
			if _, err := s.RunDue(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		for group, want := range map[string][]string{
			"a": {"first", "second", "third", "fourth", "fifth"}, "b": {"first", "second", "third"},
		} {
			if !slices.Equal(ran[group], want) {
				t.Errorf("group %q ran %v", group, ran[group])
			}
		}
	})
}

func TestDueJobsRunByPriorityThenByTimeThenByArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{MaxRunning: 1, PollInterval: -1, LeaseTTL: time.Hour})
		var ran []string
		for _, kind := range []Kind[string]{"x", "y"} {
			Handle(s, kind, func(ctx context.Context, job *Job, name string) error {
				ran = append(ran, name)
				return nil
			}, Policy{})
		}
		now := time.Now()
		for i, e := range []struct {
			name     string
			at       time.Duration
			priority int
		}{
			{"low", 0, -1000}, {"late", 2 * time.Minute, 0}, {"early", time.Minute, 0}, {"early, later come", time.Minute, 0},
			{"high, late", 3 * time.Minute, 1000}, {"high, early", 0, 1000}, {"middle", 0, 5},
		} {
			kind := []Kind[string]{"x", "y"}[i%2]
			if _, err := kind.Enqueue(t.Context(), s, e.name, EnqueueOptions{RunAt: now.Add(e.at), Priority: e.priority}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		if _, err := s.RunDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := []string{"high, early", "high, late", "middle", "early", "early, later come", "late", "low"}
		if !slices.Equal(ran, want) {
			t.Errorf("ran %q\nwant %q", ran, want)
		}
	})
}

func TestAJobRunsWhenItsTimeHasComeAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{PollInterval: -1, LeaseTTL: 365 * 24 * time.Hour})
		const kind Kind[time.Time] = "timed"
		var early atomic.Int64
		Handle(s, kind, func(ctx context.Context, job *Job, at time.Time) error {
			if time.Now().Before(at) {
				early.Add(1)
			}
			return nil
		}, Policy{})
		now := time.Now()
		for _, c := range []struct{ at, want time.Time }{
			{time.Time{}, now},
			{now.Add(-24 * time.Hour), now},
			{time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC), now},
			{now.Add(time.Microsecond), now.Add(time.Microsecond)},
			{now.Add(36 * time.Hour).In(time.FixedZone("far", 14*3600)), now.Add(36 * time.Hour)},
		} {
			answer, err := kind.Enqueue(t.Context(), s, c.at, EnqueueOptions{RunAt: c.at})
			if err != nil {
				t.Fatal(err)
			}
			job, err := s.Job(t.Context(), answer.ID)
			if err != nil {
				t.Fatal(err)
			}
			if !job.RunAt.Equal(c.want) || job.RunAt.Location() != time.UTC {
				t.Errorf("enqueued for %v, stored for %v, want %v in UTC", c.at, job.RunAt, c.want)
			}
		}
		latest := time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
		if answer, err := kind.Enqueue(t.Context(), s, latest, EnqueueOptions{RunAt: latest}); err != nil {
			t.Error(err)
		} else if job, err := s.Job(t.Context(), answer.ID); err != nil || !job.RunAt.Equal(latest) {
			t.Errorf("the latest time: %v, %v", job, err)
		}
		succeeded := func() int { return readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs WHERE state = 'succeeded'") }
		stop := start(t, s)
		for _, step := range []struct {
			pass time.Duration
			want int
		}{{time.Second, 4}, {36*time.Hour - 2*time.Second, 4}, {2 * time.Second, 5}} {
			time.Sleep(step.pass)
			synctest.Wait()
			if n := succeeded(); n != step.want {
				t.Errorf("at %v, %d jobs have succeeded, want %d", time.Since(now), n, step.want)
			}
		}
		stop()
		if n := early.Load(); n != 0 {
			t.Errorf("%d jobs ran before their time", n)
		}
	})
}

func TestEnqueueRefusesWhatIsOutOfBoundsAndWritesNothing(t *testing.T) {
	s := open(t, Config{MaxArgs: 100})
	const kind Kind[any] = "bounded"
	long := strings.Repeat("k", 513)
	labels := func(n int) map[string]string {
		all := make(map[string]string)
		for i := range n {
			all[fmt.Sprint("label", i)] = "v"
		}
		return all
	}
	for what, c := range map[string]struct {
		args any
		opts EnqueueOptions
		says string
	}{
		"a channel":                 {args: make(chan int), says: "arguments"},
		"a function":                {args: func() {}, says: "arguments"},
		"an infinity":               {args: math.Inf(1), says: "arguments"},
		"broken JSON":               {args: json.RawMessage(`{"a":`), says: "arguments"},
		"two JSON values":           {args: json.RawMessage(`1 2`), says: "arguments"},
		"NUL in JSON":               {args: json.RawMessage("\"\x00\""), says: "arguments"},
		"arguments that are no UTF": {args: json.RawMessage("\"\xff\""), says: "UTF-8"},
		"101 bytes of arguments":    {args: strings.Repeat("x", 99), says: "at most 100"},
		"a long unique key":         {opts: EnqueueOptions{UniqueKey: long}, says: "unique key"},
		"NUL in a unique key":       {opts: EnqueueOptions{UniqueKey: "a\x00b"}, says: "unique key"},
		"a unique key no UTF":       {opts: EnqueueOptions{UniqueKey: "\xc3\x28"}, says: "unique key"},
		"a long idempotency key":    {opts: EnqueueOptions{IdempotencyKey: long}, says: "idempotency key"},
		"NUL in an idempotency key": {opts: EnqueueOptions{IdempotencyKey: "\x00"}, says: "idempotency key"},
		"a long group":              {opts: EnqueueOptions{Group: long}, says: "group"},
		"a group no UTF":            {opts: EnqueueOptions{Group: "\xff"}, says: "group"},
		"once without a key":        {opts: EnqueueOptions{Once: true}, says: "UniqueKey"},
		"priority 1001":             {opts: EnqueueOptions{Priority: 1001}, says: "priority"},
		"priority -1001":            {opts: EnqueueOptions{Priority: -1001}, says: "priority"},
		"the year 10000":            {opts: EnqueueOptions{RunAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, says: "9999"},
		"33 labels":                 {opts: EnqueueOptions{Labels: labels(33)}, says: "33 labels"},
		"a label without a name":    {opts: EnqueueOptions{Labels: map[string]string{"": "v"}}, says: "label"},
		"a label's long name":       {opts: EnqueueOptions{Labels: map[string]string{strings.Repeat("k", 65): "v"}}, says: "label"},
		"a label's long value":      {opts: EnqueueOptions{Labels: map[string]string{"k": strings.Repeat("v", 513)}}, says: "label"},
		"a label's value no UTF":    {opts: EnqueueOptions{Labels: map[string]string{"k": "\xff"}}, says: "label"},
		"a label that is a path":    {opts: EnqueueOptions{Labels: map[string]string{"$.k": "v"}}, says: "label"},
		"a label that is an index":  {opts: EnqueueOptions{Labels: map[string]string{"[0]": "v"}}, says: "label"},
		"a label with a quote":      {opts: EnqueueOptions{Labels: map[string]string{`a"b`: "v"}}, says: "label"},
		"a label with a backslash":  {opts: EnqueueOptions{Labels: map[string]string{`\`: "v"}}, says: "label"},
		"a negative retry":          {opts: EnqueueOptions{Retry: &Retry{Base: -1}}, says: "base"},
	} {
		answer, err := kind.Enqueue(t.Context(), s, c.args, c.opts)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), string(kind)) {
			t.Errorf("%s: %+v, %v; want an error that matches ErrInvalid, and names %q and the kind", what, answer, err, c.says)
		}
	}
	for _, name := range []string{"", " ", "*", "a b", "a\tb", "a\nb", "a\x00b", "\xff", "a\u202eb", strings.Repeat("k", 201)} {
		if _, err := Kind[int](name).Enqueue(t.Context(), s, 1, EnqueueOptions{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("kind %q: %v", name, err)
		}
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 0 {
		t.Errorf("%d jobs were enqueued all the same", n)
	}
}

func TestEnqueueTakesWhatIsJustWithinBoundsAndKeepsItAsItIs(t *testing.T) {
	s := open(t, Config{})
	labels := map[string]string{
		strings.Repeat("k", 64): strings.Repeat("v", 512), "empty": "", "a.b": "dot", "a b": "blank", "ключ": "значение",
		"7": "digit", "-1": "negative", "quote'": "'", "__proto__": "prototype",
	}
	for i := range 32 - len(labels) {
		labels[fmt.Sprint("label", i)] = "v"
	}
	kind := Kind[string](strings.Repeat("k", 200))
	opts := EnqueueOptions{
		Priority: -1000, UniqueKey: strings.Repeat("ü", 256), IdempotencyKey: strings.Repeat("i", 512), Group: strings.Repeat("g", 512),
		Labels: labels, Retry: &Retry{Base: time.Second, Jitter: Plus(9 * time.Second), MaxAttempts: 3},
	}
	args := strings.Repeat("x", 1<<20-2) // and two quotes
	answer, err := kind.Enqueue(t.Context(), s, args, opts)
	if err != nil {
		t.Fatal(err)
	}
	job, err := s.Job(t.Context(), answer.ID)
	if err != nil {
		t.Fatal(err)
	}
	got := EnqueueOptions{Priority: job.Priority, UniqueKey: job.UniqueKey, IdempotencyKey: job.IdempotencyKey,
		Group: job.Group, Labels: job.Labels, Retry: job.Retry}
	if !reflect.DeepEqual(got, opts) || string(job.Args) != `"`+args+`"` || job.Kind != string(kind) {
		t.Errorf("stored: %+v", got)
	}
	for key, value := range labels {
		n := 0
		for job, err := range s.Jobs(t.Context(), Filter{Label: [2]string{key, value}}) {
			if err != nil || job.ID != answer.ID {
				t.Fatalf("label %q: %v, %v", key, job, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("label %q finds %d jobs", key, n)
		}
	}
	if _, err := kind.Enqueue(t.Context(), s, args+"x", EnqueueOptions{}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "MaxArgs") {
		t.Errorf("one byte more than 1 MiB: %v", err)
	}
}

func TestArgumentsArriveAsTheyWereGiven(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[map[string]any] = "payload"
	args := map[string]any{
		"id": "x", "kind": 1.5, "args": nil, "__proto__": map[string]any{"admin": true}, "constructor": []any{}, "": "empty",
		"$1": "?", "'; DROP TABLE rota_jobs; --": "\"'`", "nul": "a\x00b", "unicode": "日本\u2028\U0001f5c4\u202e",
		"html": "<script>&amp;</script>", "deep": []any{[]any{[]any{map[string]any{"a.b": false}}}}, "large": 9007199254740991.0,
	}
	var got map[string]any
	Handle(s, kind, func(ctx context.Context, job *Job, args map[string]any) error {
		got = maps.Clone(args)
		return nil
	}, Policy{})
	if _, err := kind.Enqueue(t.Context(), s, args, EnqueueOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, args) {
		t.Errorf("the handler got %#v\nwant %#v", got, args)
	}
}

func TestArgumentsMayBeOfAnyJSONType(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[json.RawMessage] = "raw"
	var got []string
	Handle(s, kind, func(ctx context.Context, job *Job, raw json.RawMessage) error {
		got = append(got, string(raw))
		return nil
	}, Policy{MaxRunning: 1})
	want := []string{`null`, `true`, `-0`, `1e400`, `12345678901234567890`, `""`, `[]`, `{"a":1,"a":2}`}
	for _, raw := range want {
		if _, err := kind.Enqueue(t.Context(), s, json.RawMessage(raw), EnqueueOptions{}); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the handler got %q\nwant %q", got, want)
	}
}

func TestAnEnqueueInATransactionExistsIfAndOnlyIfThatCommits(t *testing.T) {
	s := open(t, Config{})
	other, err := sql.Open("sqlite", fileURI(fileOf(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	const kind Kind[int] = "outbox"
	if _, err := s.DB().Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	for name, db := range map[string]*sql.DB{"the scheduler's pool": s.DB(), "another pool": other} {
		for _, commit := range []bool{true, false} {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			var order int64
			if err := tx.QueryRow("INSERT INTO orders DEFAULT VALUES RETURNING id").Scan(&order); err != nil {
				t.Fatal(err)
			}
			first, err := kind.EnqueueTx(t.Context(), s, tx, int(order), EnqueueOptions{UniqueKey: name, Group: "g"})
			if err != nil || first.Duplicate {
				t.Errorf("%s: %+v, %v", name, first, err)
			}
			// A refusal must not spoil the caller's transaction, nor a duplicate.
			if _, err := kind.EnqueueTx(t.Context(), s, tx, 0, EnqueueOptions{Priority: 5000}); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: out of bounds: %v", name, err)
			}
			second, err := kind.EnqueueTx(t.Context(), s, tx, int(order), EnqueueOptions{UniqueKey: name, Group: "g"})
			if err != nil || second != (Enqueued{ID: first.ID, Duplicate: true}) {
				t.Errorf("%s: again: %+v, %v; the first was %+v", name, second, err, first)
			}
			if _, err := s.Job(t.Context(), first.ID); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: before the commit others see the job: %v", name, err)
			}
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			_, err = s.Job(t.Context(), first.ID)
			if exists := err == nil; exists != commit {
				t.Errorf("%s: commit %v, the job exists: %v", name, commit, err)
			}
			if n := readOne[int](t, s.DB(), "SELECT count(*) FROM orders WHERE id = $1", order); (n == 1) != commit {
				t.Errorf("%s: commit %v, the order exists: %d", name, commit, n)
			}
			if commit { // make room for the same key's next round
				if err := s.Cancel(t.Context(), first.ID, By{}); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func TestARunnerSeesWhatATransactionEnqueued(t *testing.T) {
	for _, path := range []string{memory, filepath.Join(t.TempDir(), "app.db")} {
		synctest.Test(t, func(t *testing.T) {
			s := openAt(t, path, Config{LeaseTTL: time.Hour}) // no renewal helps
			const kind Kind[int] = "outbox"
			var ran []time.Time
			Handle(s, kind, func(context.Context, *Job, int) error { ran = append(ran, time.Now()); return nil }, Policy{})
			start(t, s)
			time.Sleep(10*time.Second + time.Millisecond)
			tx, err := s.DB().Begin()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kind.EnqueueTx(t.Context(), s, tx, 1, EnqueueOptions{}); err != nil {
				t.Fatal(err)
			}
			committed := time.Now()
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if len(ran) != 1 || ran[0].Sub(committed) > 50*time.Millisecond {
				t.Errorf("%s: committed at %v, run at %v", path, committed, ran)
			}
		})
	}
}

func TestArgumentsThatCantBeDecodedEndTheJobAtOnce(t *testing.T) {
	s := open(t, Config{})
	type invoice struct{ Amount int }
	const kind Kind[invoice] = "invoice"
	Handle(s, kind, func(ctx context.Context, job *Job, inv invoice) error {
		t.Error("the handler was called")
		return nil
	}, Policy{})
	retry := &Retry{MaxAttempts: 100}
	var ids []string
	for _, args := range []string{`{"Amount":"much"}`, `{"Amount":1e99}`, `[]`, `"text"`} {
		answer, err := Kind[json.RawMessage](kind).Enqueue(t.Context(), s, json.RawMessage(args), EnqueueOptions{Retry: retry})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, answer.ID)
	}
	// A row that somebody edited.
	edited, err := kind.Enqueue(t.Context(), s, invoice{}, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB().Exec("UPDATE rota_jobs SET args = '{' WHERE id = $1", edited.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range append(ids, edited.ID) {
		job, err := s.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		attempts, err := s.Attempts(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if job.State != Dead || job.Reason != "undecodable" || len(attempts) != 1 {
			t.Fatalf("%s: %s, %s, %d attempts", job.Args, job.State, job.Reason, len(attempts))
		}
		if a := attempts[0]; a.Outcome != OutcomeFailed || a.Class != "undecodable" || a.Error == "" || !a.NextAt.IsZero() {
			t.Errorf("%s: evidence %+v", job.Args, a)
		}
	}
}

func TestAKindWithoutAHandlerIsLeftAlone(t *testing.T) {
	s := open(t, Config{})
	const known, unknown Kind[int] = "known", "unknown"
	Handle(s, known, func(context.Context, *Job, int) error { return nil }, Policy{})
	var left []string
	for i := range 3 {
		answer, err := unknown.Enqueue(t.Context(), s, i, EnqueueOptions{Priority: 1000})
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, answer.ID)
	}
	done, err := known.Enqueue(t.Context(), s, 1, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := state(t, s, done.ID); now != Succeeded {
		t.Errorf("the known kind's job is %s", now)
	}
	for _, id := range left {
		job, err := s.Job(t.Context(), id)
		if err != nil || job.State != Pending || job.Attempt != 0 || !job.StartedAt.IsZero() || job.Reason != "" {
			t.Errorf("a job of the unknown kind was touched: %+v, %v", job, err)
		}
	}
	stats, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{string(unknown): 3}; !maps.Equal(stats.Unclaimable, want) {
		t.Errorf("unclaimable: %v, want %v", stats.Unclaimable, want)
	}
	// The program's next version knows it.
	Handle(s, unknown, func(context.Context, *Job, int) error { return nil }, Policy{})
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range left {
		if now := state(t, s, id); now != Succeeded {
			t.Errorf("with a handler, the job is %s", now)
		}
	}
}

func TestAContextThatHasEndedEnqueuesNothing(t *testing.T) {
	s := open(t, Config{})
	reason := errors.New("the request was dropped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	for range 100 {
		_, err := Kind[int]("any").Enqueue(ctx, s, 1, EnqueueOptions{})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, reason) || errors.Is(err, ErrUncertain) {
			t.Fatalf("error: %v; it must match context.Canceled and its cause, and not ErrUncertain", err)
		}
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 0 {
		t.Errorf("%d jobs were enqueued all the same", n)
	}
}

func TestIdsSortByAgeAndDiffer(t *testing.T) {
	s := open(t, Config{})
	entries := make([]Entry[int], 2000)
	answers, err := Kind[int]("any").EnqueueMany(t.Context(), s, entries...)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(answers))
	for i, a := range answers {
		ids[i] = a.ID
	}
	if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Error("ids repeat, or do not sort by age")
	}
	var keys []string
	for job, err := range s.Jobs(t.Context(), Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, job.IdempotencyKey)
	}
	if !slices.Equal(keys, ids) {
		t.Error("the idempotency key of a job that was given none is not its id, or jobs are not read in their order")
	}
}
