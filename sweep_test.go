package rota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// unsent is what programs sweep: what is not yet done.
const unsent = `SELECT id, json_object('id', id) FROM invoices WHERE sent_at IS NULL`

type invoiceArgs struct {
	ID int `json:"id"`
}

const sweepKind Kind[invoiceArgs] = "invoice.send"

// withInvoices makes the application's own table beside Rota's, with the
// invoices 1 to n, none of them sent.
func withInvoices(t *testing.T, s *Scheduler, n int) {
	t.Helper()
	_, err := s.DB().Exec(`CREATE TABLE invoices (id INTEGER PRIMARY KEY, sent_at INTEGER, times INTEGER NOT NULL DEFAULT 0)`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.DB().Exec(`WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < $1)
		INSERT INTO invoices (id) SELECT n FROM i`, n)
	if err != nil {
		t.Fatal(err)
	}
}

func sweepsTo(t *testing.T, s *Scheduler, want int, query string, args ...any) {
	t.Helper()
	if n, err := sweepKind.Sweep(t.Context(), s, query, args...); n != want || err != nil {
		t.Errorf("sweep %s %v: %d, %v; want %d", query, args, n, err, want)
	}
}

func TestASweepOfAHundredThousandRowsTakesSeconds(t *testing.T) {
	s := open(t, Config{})
	n := 100_000
	if raceEnabled { // a row is some forty times as dear
		n = 3000
	}
	withInvoices(t, s, n)
	began := time.Now()
	sweepsTo(t, s, n, unsent)
	first := time.Since(began)
	began = time.Now()
	sweepsTo(t, s, 0, unsent)
	t.Logf("%d rows: %v; again, with nothing to add: %v", n, first.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if first > 30*time.Second {
		t.Errorf("it took %v", first)
	}
	const odd = `SELECT count(*) FROM rota_jobs WHERE state <> 'pending' OR kind <> $1 OR args <> json_object('id', CAST(unique_key AS INTEGER))`
	if broken := readOne[int](t, s.DB(), odd, string(sweepKind)); broken > 0 {
		t.Errorf("%d jobs are not what the query gave", broken)
	}
}

func TestASweepPassesOverWhatHasALiveJobAndRepeatsWhatHasNot(t *testing.T) {
	s := open(t, Config{})
	withInvoices(t, s, 6)
	outcomes := map[int]error{1: nil, 2: Permanent(errors.New("no address")), 3: Unknown(errors.New("lost")), 4: Snooze(time.Hour)}
	Handle(s, sweepKind, func(ctx context.Context, job *Job, inv invoiceArgs) error {
		if inv.ID == 5 { // while it runs
			sweepsTo(t, s, 0, `SELECT id, '{}' FROM invoices WHERE id = 5`)
		}
		return outcomes[inv.ID]
	}, Policy{OnUnknown: UnknownHold})
	if _, err := sweepKind.Enqueue(t.Context(), s, invoiceArgs{6}, EnqueueOptions{UniqueKey: "6", Once: true}); err != nil {
		t.Fatal(err)
	}
	sweepsTo(t, s, 5, unsent) // 6 is there
	sweepsTo(t, s, 0, unsent) // all are pending
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Of those that ended, 1 and 5 succeeded without a mark and 2 died: they
	// are still unsent. 3 is held, 4 pending, 6 was for once.
	sweepsTo(t, s, 3, unsent)
	for id, want := range map[string]int{"1": 2, "2": 2, "3": 1, "4": 1, "5": 2, "6": 1} {
		if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs WHERE unique_key = $1", id); n != want {
			t.Errorf("invoice %s has %d jobs, want %d", id, n, want)
		}
	}
}

func TestASweepTakesEveryFormOfQuery(t *testing.T) {
	s := open(t, Config{})
	withInvoices(t, s, 30)
	for _, c := range []struct {
		want  int
		query string
		args  []any
	}{
		{1, `VALUES ('values', '{}')`, nil},
		{2, `WITH x(n) AS (VALUES (1), (2)) SELECT 'with' || n, json_object('n', n) FROM x`, nil},
		{2, `SELECT 'union', '{}' UNION ALL SELECT 'all', '[]' ORDER BY 1 LIMIT 2`, nil},
		{1, `SELECT 'semicolon', '{}' ; `, nil},
		{1, "SELECT 'comment', '{}' -- what is not yet sent", nil},
		{1, "SELECT 'block', '{}' /* what is not yet sent */", nil},
		{1, `SELECT 'twice', '{}' UNION ALL SELECT 'twice', '{"other":1}'`, nil},
		{1, `SELECT 'number', 5`, nil},
		{1, `SELECT 'binary', CAST('{"a":1}' AS BLOB)`, nil},
		{1, `SELECT x'6b6579', '{}'`, nil},
		{3, `SELECT id, json_object('id', id) FROM invoices WHERE id BETWEEN ? AND ?`, []any{1, 3}},
		{2, `SELECT id, json_object('id', id) FROM invoices WHERE id IN ($1, $2) OR id = $1`, []any{4, 5}},
		{2, `SELECT id, json_object('id', id) FROM invoices WHERE id IN (?2, ?1)`, []any{6, 7}},
		{1, `SELECT id, json_object('id', id) FROM invoices WHERE id = :which`, []any{sql.Named("which", 8)}},
		{2, `SELECT id, json_object('who', ?) FROM invoices WHERE id IN (?, ?)`, []any{"'; DROP TABLE invoices; --", 9, 10}},
		{1, `SELECT id, json_object('kind', ?1) FROM invoices WHERE id = 11`, []any{"a \"quoted\" text"}},
		{0, `SELECT id, json_object('id', id) FROM invoices WHERE id IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)`, nil},
		{0, `SELECT id, NULL FROM invoices WHERE 0`, nil},
	} {
		sweepsTo(t, s, c.want, c.query, c.args...)
	}
	if args := readOne[string](t, s.DB(), "SELECT args FROM rota_jobs WHERE unique_key = '9'"); args != `{"who":"'; DROP TABLE invoices; --"}` {
		t.Errorf("arguments %s", args)
	}
}

func TestASweepWithABadRowOrQuerySaysWhichAndWritesNothing(t *testing.T) {
	s := open(t, Config{MaxArgs: 100})
	withInvoices(t, s, 3)
	const before = `SELECT 'good', '{}' UNION ALL `
	for _, c := range []struct {
		query string
		args  []any
		says  string
	}{
		{before + `SELECT NULL, '{}'`, nil, "without a key"},
		{before + `SELECT '', '{}'`, nil, "without a key"},
		{before + `SELECT 'bad', NULL`, nil, `"bad"`},
		{before + `SELECT 'bad', ''`, nil, `"bad"`},
		{before + `SELECT 'bad', '{"a":'`, nil, `"bad"`},
		{before + `SELECT 'bad', '{} {}'`, nil, `"bad"`},
		{before + `SELECT 'bad', CAST(x'22ff22' AS TEXT)`, nil, `"bad"`},
		{before + `SELECT 'bad', json_quote(printf('%.*c', 200, 'x'))`, nil, `"bad"`},
		{before + `SELECT 'a' || char(0) || 'b', '{}'`, nil, "unique key"},
		{before + `SELECT CAST(x'ff' AS TEXT), '{}'`, nil, "unique key"},
		{before + `SELECT printf('%.*c', 600, 'k'), '{}'`, nil, "unique key"},
		{before + `SELECT id, json('{') FROM invoices`, nil, "JSON"},
		{``, nil, "query"},
		{`SELECT id FROM invoices`, nil, "query"},
		{`SELECT id, '{}', 3, 4 FROM invoices`, nil, "query"},
		{`SELECT id, '{}' FROM nowhere`, nil, "nowhere"},
		{`SELECT id, '{}' FROM invoices WHERE id = ?`, nil, "query"},
		{`SELECT id, '{}' FROM invoices) --`, nil, "query"},
		{`SELECT id, '{}' FROM invoices /*`, nil, "query"},
		{`SELECT id, '{}' FROM invoices WHERE id = ?`, []any{make(chan int)}, "query"},
	} {
		n, err := sweepKind.Sweep(t.Context(), s, c.query, c.args...)
		if n != 0 || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("sweep %q: %d, %v; want an error that matches ErrInvalid and names %q", c.query, n, err, c.says)
		}
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 0 {
		t.Errorf("%d jobs were enqueued all the same", n)
	}
	sweepsTo(t, s, 3, unsent) // the writer is none the worse
}

func TestASweepsQueryCanOnlyRead(t *testing.T) {
	s := open(t, Config{})
	withInvoices(t, s, 3)
	for _, query := range []string{
		`DELETE FROM invoices RETURNING id, '{}'`,
		`UPDATE invoices SET sent_at = 1 RETURNING id, '{}'`,
		`INSERT INTO invoices (id) VALUES (9) RETURNING id, '{}'`,
		`WITH x AS (SELECT 1) DELETE FROM invoices RETURNING id, '{}'`,
		`SELECT id, '{}' FROM (DELETE FROM invoices RETURNING id)`,
		`SELECT id, '{}' FROM invoices; DELETE FROM invoices`,
		`PRAGMA user_version = 7`,
		`DROP TABLE invoices`,
		`COMMIT`,
	} {
		if n, err := sweepKind.Sweep(t.Context(), s, query); n != 0 || !errors.Is(err, ErrInvalid) {
			t.Errorf("sweep %s: %d, %v", query, n, err)
		}
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM invoices WHERE sent_at IS NULL"); n != 3 {
		t.Errorf("%d of 3 invoices are as they were", n)
	}
	if n := readOne[int](t, s.DB(), "PRAGMA user_version"); n != 0 {
		t.Errorf("user_version is %d", n)
	}
}

func TestASweepWithoutEndEndsWithItsContextAndKeepsNobodyLonger(t *testing.T) {
	s := open(t, Config{})
	for _, endless := range []string{
		`WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i) SELECT n, '{}' FROM i`,
		`WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i) SELECT max(n), '{}' FROM i`,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		n, err := sweepKind.Sweep(ctx, s, endless)
		cancel()
		if n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sweep: %d, %v", n, err)
		}
		if _, err := sweepKind.Enqueue(t.Context(), s, invoiceArgs{}, EnqueueOptions{}); err != nil {
			t.Errorf("an enqueue behind it: %v", err)
		}
	}
	if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 2 {
		t.Errorf("%d jobs, want the two that were enqueued behind the sweeps", n)
	}
}

func TestSweepsThatRaceWithHandlersNeverDoubleAJob(t *testing.T) {
	s := open(t, Config{MaxRunning: 6})
	n := 600
	if raceEnabled {
		n = 150
	}
	withInvoices(t, s, n)
	Handle(s, sweepKind, func(ctx context.Context, job *Job, inv invoiceArgs) error {
		res, err := s.DB().ExecContext(ctx, "UPDATE invoices SET sent_at = 1, times = times + 1 WHERE id = $1", inv.ID)
		if err != nil {
			return err
		}
		if rows, err := res.RowsAffected(); err != nil || rows != 1 {
			return Permanent(fmt.Errorf("%d invoices %d: %w", rows, inv.ID, err))
		}
		return nil
	}, Policy{})
	start(t, s)
	var swept atomic.Int64
	left := func() int { return readOne[int](t, s.DB(), "SELECT count(*) FROM invoices WHERE sent_at IS NULL") }
	for left() > 0 {
		added, err := sweepKind.Sweep(t.Context(), s, unsent+" LIMIT 40")
		if err != nil {
			t.Fatal(err)
		}
		swept.Add(int64(added))
	}
	waitFor(t, "every job has ended", func() bool {
		return readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs WHERE state <> 'succeeded'") == 0
	})
	if doubled := readOne[int](t, s.DB(), "SELECT count(*) FROM invoices WHERE times <> 1"); doubled > 0 || swept.Load() != int64(n) {
		t.Errorf("%d invoices were not sent exactly once; %d jobs for %d invoices", doubled, swept.Load(), n)
	}
}

func TestASweepsThirdColumnKeepsTheIdempotencyKeyOverADeadJob(t *testing.T) {
	s := open(t, Config{})
	withInvoices(t, s, 1)
	var keys []string
	Handle(s, sweepKind, func(ctx context.Context, job *Job, inv invoiceArgs) error {
		keys = append(keys, job.IdempotencyKey)
		return Permanent(errors.New("no address"))
	}, Policy{})
	const query = `SELECT id, json_object('id', id), 'invoice:' || id FROM invoices WHERE sent_at IS NULL AND id > ?`
	for range 2 { // two nights
		if n, err := sweepKind.Sweep(t.Context(), s, query, 0); n != 1 || err != nil {
			t.Fatalf("sweep: %d, %v", n, err)
		}
		if _, err := s.RunDue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"invoice:1", "invoice:1"}; !slices.Equal(keys, want) {
		t.Errorf("the handler saw the keys %q, want %q", keys, want)
	}
}
