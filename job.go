package rota

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// State is where a job stands.
//
//	       enqueue, schedule            claim
//	───────────────► Pending ───────────────► Running
//	                 ▲  ▲                       │
//	retry, unknown ──┘  └── snooze, interrupted │
//	                                            ├─► Succeeded
//	Pending ⇄ Paused (a schedule's next)        ├─► Dead
//	Pending ─► Cancelled, Dead, Held            ├─► Held ─► Succeeded, Dead
//	                                            └─► Cancelled
type State string

const (
	// Pending: it runs once RunAt has come, its kind may run and a slot is free.
	Pending State = "pending"
	// Paused: the next occurrence of a schedule that a person has paused.
	Paused State = "paused"
	// Running: a runner has claimed it.
	Running State = "running"
	// Held: its outcome is unknown and its kind must not be repeated without a
	// person's decision: Resolve, or Replay.
	Held State = "held"
	// Succeeded: it has done its work.
	Succeeded State = "succeeded"
	// Dead: it ended without success and waits for a person to look, and to
	// Replay it if that is right.
	Dead State = "dead"
	// Cancelled: a person, or a schedule's policy, decided against it.
	Cancelled State = "cancelled"
)

// Terminal tells whether a job in this state never changes any more; only
// Prune removes it.
func (s State) Terminal() bool { return s == Succeeded || s == Dead || s == Cancelled }

// Job is one unit of work, as its row stood when it was read. Handlers get the
// job that they do; its methods are theirs alone.
type Job struct {
	ID             string // UUIDv7, so that ids sort by age
	Kind           string
	State          State
	Args           json.RawMessage
	Priority       int       // the higher runs first
	RunAt          time.Time // not before
	Attempt        int       // number of the current or last attempt; 0: none yet
	Retry          *Retry    // the enqueuer's own policy; nil: the kind's decides
	UniqueKey      string
	IdempotencyKey string // the same for all attempts and replays
	Group          string
	Labels         map[string]string
	Schedule       string    // name; "" for ad-hoc work
	Spec, Zone     string    // the schedule's; set on its next occurrence only
	ScheduledFor   time.Time // the instant that it was meant for: an occurrence's own, or the RunAt it was enqueued with
	ReplayOf       string    // id of the job that this one does again
	Reason         string    // why it is in its state, one word: "exhausted"
	Error          string    // safe text of the last failure
	CreatedAt      time.Time
	StartedAt      time.Time // of the first attempt
	FinishedAt     time.Time

	seq      int64
	head     bool // it is its schedule's next occurrence, which carries the spec
	spent    int
	deaths   int
	doubt    bool
	inLine   bool
	once     bool
	origin   string
	token    int64
	rule     rule
	resumeAt time.Time
	ruleErr  error

	run *execution // set while a handler has it
}

// copied is a Job that may be changed without changing j.
func (j *Job) copied() *Job {
	c := *j
	c.Args, c.Labels = bytes.Clone(j.Args), maps.Clone(j.Labels)
	if j.Retry != nil {
		retry := *j.Retry
		c.Retry = &retry
	}
	return &c
}

// Note adds a fact to the evidence of the current attempt, such as a
// provider's message id. value is anything that encoding/json takes; text is
// made safe as error texts are. Notes of an attempt are bounded to 16 KiB; what
// exceeds that is left out, and counted. It may be called from several
// goroutines, until the handler returns.
func (j *Job) Note(key string, value any) {
	if j.run != nil {
		j.run.notes.add(key, value, j.run.redact)
	}
}

// CompleteTx records the current attempt as succeeded in the handler's own
// transaction, so that the handler's changes to the same database and the
// job's end are one: they happen together, exactly once, or not at all. It
// fails with ErrLeaseLost if this runner has been replaced; roll back then. The
// handler commits tx and returns nil. If it returns nil without having
// committed, the attempt is a failure and is retried. Note before CompleteTx:
// what comes after it is not kept.
func (j *Job) CompleteTx(ctx context.Context, tx *sql.Tx) error {
	if j.run == nil {
		return fmt.Errorf("rota: complete job %s: %w: it is no handler's", j.ID, ErrState)
	}
	return j.run.completeTx(ctx, tx)
}

// A Kind names a sort of work and fixes the type of its arguments. Declare it
// once, as a constant, where both who enqueues and who handles can see it:
//
//	const SendInvoice rota.Kind[Invoice] = "invoice.send"
//
// T is anything that encoding/json can write and read. Names are 1 to 200
// bytes of printable text without spaces; case matters.
type Kind[T any] string

// EnqueueOptions says how a job is enqueued; the zero value is right for most.
type EnqueueOptions struct {
	// RunAt is the earliest start. Zero, or a time that has passed: at once.
	RunAt time.Time

	// Priority orders due jobs: the higher first. Between -1000 and 1000.
	Priority int

	// UniqueKey allows one live job of the kind with this key (pending,
	// paused, running or held); a second enqueue answers with the first's id.
	UniqueKey string

	// Once makes UniqueKey count for ever: also against jobs that were enqueued
	// with Once and have ended. Such jobs are their own memory and are never
	// pruned.
	Once bool

	// IdempotencyKey is what the handler shows to others so that they do the
	// work once. Empty: the job's id. Not checked for uniqueness here.
	IdempotencyKey string

	// Group is a key within the kind: its jobs run one at a time, in the order
	// of their RunAt and then of their arrival. One that has begun and waits
	// for a retry holds up those behind it; one that is held or dead does not.
	Group string

	// Labels are facts for people and for filters: account, template. They are
	// shown in lists, so they are no place for secrets. At most 32, of 64 bytes
	// (key, without $ [ " \) and 512 bytes (value).
	Labels map[string]string

	// Retry replaces the kind's own policy for this job, and is stored with it.
	Retry *Retry
}

// Enqueued is the answer to an enqueue.
type Enqueued struct {
	ID        string
	Duplicate bool // ID is that of the job that had the UniqueKey before
}

// Entry is one job of EnqueueMany.
type Entry[T any] struct {
	Args T
	EnqueueOptions
}

// Enqueue stores one job and returns when it is durable. It fails with
// ErrInvalid for arguments that can't be encoded or are larger than
// Config.MaxArgs. If ctx ends first, the job is not there, unless the error
// matches ErrUncertain.
func (k Kind[T]) Enqueue(ctx context.Context, s *Scheduler, args T, opts EnqueueOptions) (Enqueued, error) {
	all, err := k.EnqueueMany(ctx, s, Entry[T]{args, opts})
	if err != nil {
		return Enqueued{}, err
	}
	return all[0], nil
}

// EnqueueMany stores the jobs in one transaction: all or none. The answers
// stand in the order of the entries. Otherwise as Enqueue.
func (k Kind[T]) EnqueueMany(ctx context.Context, s *Scheduler, entries ...Entry[T]) ([]Enqueued, error) {
	rows, err := k.rows(s, entries)
	if err != nil {
		return nil, err
	}
	answers := make([]Enqueued, len(rows))
	err = s.writer.do(ctx, func(ctx context.Context, tx Tx) error {
		return insertAll(ctx, tx, rows, answers)
	})
	if err != nil {
		return nil, fmt.Errorf("rota: enqueue %s: %w", k, err)
	}
	return answers, nil
}

// EnqueueTx stores one job through the caller's own transaction on the same
// database (see Scheduler.DB): the job exists if and only if tx commits.
func (k Kind[T]) EnqueueTx(ctx context.Context, s *Scheduler, tx *sql.Tx, args T, opts EnqueueOptions) (Enqueued, error) {
	rows, err := k.rows(s, []Entry[T]{{args, opts}})
	if err != nil {
		return Enqueued{}, err
	}
	var answer [1]Enqueued
	if err := insertAll(ctx, tx, rows, answer[:]); err != nil {
		return Enqueued{}, fmt.Errorf("rota: enqueue %s: %w", k, err)
	}
	return answer[0], nil
}

// Sweep enqueues one job for each row of a query that says what is not yet
// done, and returns how many it enqueued. The query gives a key that is unique in
// the query, and the arguments as JSON. A row whose key has a live job of this
// kind is passed over, so a sweep can be repeated at any time:
//
//	n, err := SendInvoice.Sweep(ctx, s, `
//	    SELECT id, json_object('id', id) FROM invoices WHERE sent_at IS NULL`)
//
// A job that died is not live, so a later sweep makes another for the same row.
// If that must not do again what the dead one may have done, let a third column
// give the idempotency key: the same for the same piece of work, such as
// 'invoice:' || id. Without it each job has a key of its own.
//
// The query and the enqueues are one transaction, so a job that ends meanwhile
// is not doubled. The jobs that it adds are held in memory until it commits, and
// nothing else is written meanwhile: sweep millions of rows by ranges of their
// ids. The query is part of the program, as every SQL text should be; args are
// its parameters.
func (k Kind[T]) Sweep(ctx context.Context, s *Scheduler, query string, args ...any) (int, error) {
	if err := checkName("kind", string(k)); err != nil {
		return 0, err
	}
	var n int
	err := s.writer.do(ctx, func(batch context.Context, tx Tx) (err error) {
		n, err = sweep(batch, tx, ctx, string(k), s.cfg.MaxArgs, query, args)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("rota: sweep %s: %w", k, err)
	}
	return n, nil
}

// rows makes the entries' rows, in the caller's own time and not the writer's.
func (k Kind[T]) rows(s *Scheduler, entries []Entry[T]) ([]jobRow, error) {
	rows := make([]jobRow, len(entries))
	for i, e := range entries {
		row, err := newRow(string(k), e.Args, e.EnqueueOptions, s.cfg.MaxArgs)
		if err != nil {
			return nil, fmt.Errorf("rota: enqueue %s: %w", k, err)
		}
		rows[i] = row
	}
	return rows, nil
}

// jobRow is a job that is about to be inserted, in the database's own types.
type jobRow struct {
	id, kind, args       string
	state                State
	priority             int
	runAt                int64
	retry                any // nil or text, as are those below
	uniqueKey            any
	once                 bool
	idempotencyKey       string
	group                any
	labels               any
	schedule, spec, zone any
	rule                 any
	scheduledFor         any
	origin               string
	replayOf             any
	reason, resumeAt     any
	createdAt            int64
}

// newRow checks what the caller gave and encodes it.
func newRow(kind string, args any, o EnqueueOptions, maxArgs int) (jobRow, error) {
	var row jobRow
	if err := checkName("kind", kind); err != nil {
		return row, err
	}
	data, err := json.Marshal(args)
	if err != nil {
		return row, fmt.Errorf("%w: arguments: %w", ErrInvalid, err)
	}
	if !utf8.Valid(data) { // a json.RawMessage may be anything
		return row, fmt.Errorf("%w: arguments: not valid UTF-8", ErrInvalid)
	}
	if len(data) > maxArgs {
		return row, fmt.Errorf("%w: arguments have %d bytes; at most %d are allowed (Config.MaxArgs): store the data elsewhere and enqueue its key", ErrInvalid, len(data), maxArgs)
	}
	if err := o.validate(); err != nil {
		return row, err
	}
	id, err := newID()
	if err != nil {
		return row, err
	}
	now := time.Now()
	row = jobRow{
		id: id, kind: kind, state: Pending, args: string(data), priority: o.Priority,
		runAt: micros(now), uniqueKey: text(o.UniqueKey), once: o.Once,
		idempotencyKey: o.IdempotencyKey, group: text(o.Group), createdAt: micros(now),
	}
	if o.RunAt.After(now) {
		row.runAt, row.scheduledFor = micros(o.RunAt), micros(o.RunAt)
	}
	if row.idempotencyKey == "" {
		row.idempotencyKey = row.id
	}
	row.retry, row.labels = retryText(o.Retry), labelsText(o.Labels)
	return row, nil
}

// retryText is a policy as a row holds it; nil for none.
func retryText(r *Retry) any {
	if r == nil {
		return nil
	}
	data, _ := json.Marshal(r) // texts and numbers
	return string(data)
}

// labelsText are labels as a row holds them; nil for none.
func labelsText(labels map[string]string) any {
	if len(labels) == 0 {
		return nil
	}
	data, _ := json.Marshal(labels) // a map of strings, in the order of its keys
	return string(data)
}

// newID is a UUIDv7 (RFC 9562): the time first, so that new ids stand together
// in the index.
func newID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("job id: %w", err)
	}
	return id.String(), nil
}

const maxKey = 512

func (o EnqueueOptions) validate() error {
	for _, key := range []struct{ name, value string }{
		{"unique key", o.UniqueKey}, {"idempotency key", o.IdempotencyKey}, {"group", o.Group},
	} {
		if len(key.value) > maxKey || !utf8.ValidString(key.value) || strings.ContainsRune(key.value, 0) {
			return fmt.Errorf("%w: the %s must be valid UTF-8 without NUL, of at most %d bytes", ErrInvalid, key.name, maxKey)
		}
	}
	switch {
	case o.Once && o.UniqueKey == "":
		return fmt.Errorf("%w: Once needs a UniqueKey", ErrInvalid)
	case o.Priority < -1000 || o.Priority > 1000:
		return fmt.Errorf("%w: priority %d; allowed: -1000 to 1000", ErrInvalid, o.Priority)
	case len(o.Labels) > 32:
		return fmt.Errorf("%w: %d labels; at most 32 are allowed", ErrInvalid, len(o.Labels))
	case o.RunAt.Year() > 9999:
		return fmt.Errorf("%w: run at %d: beyond the year 9999", ErrInvalid, o.RunAt.Year())
	}
	for k, v := range o.Labels {
		// What has a meaning in a JSON path could not be filtered by.
		if k == "" || strings.ContainsAny(k, `$["\`) || len(k) > 64 || len(v) > 512 || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: label %.64q: at most 64 bytes of key and 512 bytes of value, valid UTF-8, and none of $ [ \" \\ in the key", ErrInvalid, k)
		}
	}
	if o.Retry != nil {
		if err := o.Retry.validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}

// checkName refuses names of kinds and schedules that would be hard to type,
// to read in a log or to put in an address.
func checkName(what, name string) error {
	if name == "" || len(name) > 200 || name == allKinds || strings.ContainsAny(name, " \t\r\n") || escape(name) != name {
		return fmt.Errorf("%w: %s %.200q: a name is 1 to 200 bytes of printable text without spaces, and not %q", ErrInvalid, what, name, allKinds)
	}
	return nil
}

const (
	sqlInsertJob = `
		INSERT INTO rota_jobs (id, kind, state, args, priority, run_at, retry, unique_key, once,
			idempotency_key, group_key, in_line, labels, schedule, spec, zone, rule,
			scheduled_for, origin, replay_of, created_at, reason, resume_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
			$19, $20, $21, $22, $23)
		ON CONFLICT DO NOTHING`

	sqlFindUnique = `
		SELECT id FROM rota_jobs WHERE kind = $1 AND unique_key = $2
			AND (once = 1 OR state IN ('pending', 'paused', 'running', 'held'))`

	// A job that comes to a group steps in front of one that has not begun and
	// is meant for later.
	sqlFront = `
		SELECT seq, run_at, attempt FROM rota_jobs
		WHERE kind = $1 AND group_key = $2 AND in_line = 0 AND state IN ('pending', 'running')`

	sqlStepBack = `UPDATE rota_jobs SET in_line = 1 WHERE seq = $1`

	// The next job moves up when the group's front has left.
	sqlMoveUp = `
		UPDATE rota_jobs SET in_line = 0 WHERE seq = (
			SELECT seq FROM rota_jobs
			WHERE kind = $1 AND group_key = $2 AND in_line = 1 AND state = 'pending'
			ORDER BY run_at, seq LIMIT 1)
		AND NOT EXISTS (SELECT 1 FROM rota_jobs
			WHERE kind = $1 AND group_key = $2 AND in_line = 0 AND state IN ('pending', 'running'))`
)

// insert stores the row, or reports that a unique index forbids it.
func (r *jobRow) insert(ctx context.Context, tx Tx) (inserted bool, err error) {
	inLine := false
	if r.group != nil && r.state == Pending {
		if inLine, err = lineUp(ctx, tx, r.kind, r.group, r.runAt); err != nil {
			return false, err
		}
	}
	res, err := tx.ExecContext(ctx, sqlInsertJob, r.id, r.kind, string(r.state), r.args, r.priority,
		r.runAt, r.retry, r.uniqueKey, flag(r.once), r.idempotencyKey, r.group, flag(inLine), r.labels, r.schedule,
		r.spec, r.zone, r.rule, r.scheduledFor, r.origin, r.replayOf, r.createdAt, r.reason, r.resumeAt)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 && r.group != nil && !inLine {
		err = moveUp(ctx, tx, r.kind, r.group.(string)) // whoever stepped back for it
	}
	return n == 1, err
}

// lineUp finds the place in its group of a job that comes to it: at the front,
// or in line.
func lineUp(ctx context.Context, tx Tx, kind string, group any, runAt int64) (inLine bool, err error) {
	var seq, frontRunAt int64
	var attempt int
	err = tx.QueryRowContext(ctx, sqlFront, kind, group).Scan(&seq, &frontRunAt, &attempt)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil || attempt > 0 || frontRunAt <= runAt {
		return true, err
	}
	_, err = tx.ExecContext(ctx, sqlStepBack, seq)
	return false, err
}

// moveUp follows when a job has left its group, which may have been its front.
func moveUp(ctx context.Context, tx Tx, kind, group string) error {
	if group == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, sqlMoveUp, kind, group)
	return err
}

func insertAll(ctx context.Context, tx Tx, rows []jobRow, answers []Enqueued) error {
	for i := range rows {
		inserted, err := rows[i].insert(ctx, tx)
		if err != nil {
			return err
		}
		answers[i] = Enqueued{ID: rows[i].id}
		if !inserted {
			answers[i].Duplicate = true
			err := tx.QueryRowContext(ctx, sqlFindUnique, rows[i].kind, rows[i].uniqueKey).Scan(&answers[i].ID)
			if err != nil {
				return fmt.Errorf("find the job with unique key %q: %w", rows[i].uniqueKey, err)
			}
		}
	}
	return nil
}

// sweep reads under the caller's own context, so that a query without an end
// keeps the writer no longer than the caller is willing to wait.
func sweep(ctx context.Context, tx Tx, caller context.Context, kind string, maxArgs int, query string, args []any) (int, error) {
	query = strings.TrimRight(query, "; \t\r\n")
	withKey, err := hasThreeColumns(caller, tx, query, args)
	if err != nil {
		return 0, err
	}
	columns, keyColumn := "key, args", "NULL"
	if withKey {
		columns, keyColumn = "key, args, idempotency_key", "CAST(idempotency_key AS TEXT)"
	}
	// The programmer's query is a table expression here, so it can only read.
	// Ours is a named parameter, so that it is not taken for one that is missing.
	todo := fmt.Sprintf(`
		WITH todo(%s) AS (%s
		)
		SELECT CAST(key AS TEXT), CAST(args AS TEXT), %s FROM todo
		WHERE NOT EXISTS (SELECT 1 FROM rota_jobs WHERE kind = :rota_kind AND unique_key = CAST(todo.key AS TEXT)
			AND (once = 1 OR state IN ('pending', 'paused', 'running', 'held')))`, columns, query, keyColumn)
	args = append(args[:len(args):len(args)], sql.Named("rota_kind", kind))
	fail := func(err error) error {
		if caller.Err() != nil {
			return err
		}
		return fmt.Errorf("%w: query: %w", ErrInvalid, err)
	}
	found, err := tx.QueryContext(caller, todo, args...)
	if err != nil {
		return 0, fail(err)
	}
	defer found.Close()
	var rows []jobRow
	for found.Next() {
		var key, data, idempotencyKey sql.NullString
		if err := found.Scan(&key, &data, &idempotencyKey); err != nil {
			return 0, err
		}
		if key.String == "" {
			return 0, fmt.Errorf("%w: the query gives a row without a key", ErrInvalid)
		}
		row, err := newRow(kind, json.RawMessage(data.String), EnqueueOptions{
			UniqueKey: key.String, IdempotencyKey: idempotencyKey.String}, maxArgs)
		if err != nil {
			return 0, fmt.Errorf("key %.100q: %w", key.String, err)
		}
		rows = append(rows, row)
	}
	if err := found.Err(); err != nil {
		return 0, fail(err)
	}
	n := 0
	for i := range rows {
		inserted, err := rows[i].insert(ctx, tx)
		if err != nil {
			return 0, err
		}
		if inserted { // false: the query gave a key twice
			n++
		}
	}
	return n, nil
}

// hasThreeColumns asks the database how many columns the query gives, without
// running it.
func hasThreeColumns(ctx context.Context, tx Tx, query string, args []any) (bool, error) {
	none, err := tx.QueryContext(ctx, "SELECT * FROM (\n"+query+"\n) AS todo LIMIT 0", args...)
	if err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		return false, fmt.Errorf("%w: query: %w", ErrInvalid, err)
	}
	names, err := none.Columns()
	if err = errors.Join(err, none.Close()); err == nil && len(names) != 2 && len(names) != 3 {
		err = fmt.Errorf("%w: query: it gives %d columns; wanted: a key, the arguments and, if need be, an idempotency key", ErrInvalid, len(names))
	}
	return len(names) == 3, err
}

// jobColumns and scan belong together.
const jobColumns = `seq, id, kind, state, args, priority, run_at, attempt, spent, deaths, doubt,
	retry, unique_key, once, idempotency_key, group_key, in_line, labels, schedule, spec, zone, rule,
	scheduled_for, origin, replay_of, token, reason, error, created_at, started_at, finished_at, resume_at`

// scan reads a row of jobColumns. What is stored as JSON and can't be read any
// more does not fail the row: the job says so when it is run.
func (j *Job) scan(row interface{ Scan(...any) error }) error {
	var (
		args                                           []byte
		runAt, createdAt                               int64
		retry, labels, rule                            []byte
		uniqueKey, group, schedule, spec, zone, replay sql.NullString
		reason, errText                                sql.NullString
		scheduledFor, token, startedAt, finishedAt     sql.NullInt64
		resumeAt                                       sql.NullInt64
	)
	err := row.Scan(&j.seq, &j.ID, &j.Kind, &j.State, &args, &j.Priority, &runAt, &j.Attempt, &j.spent, &j.deaths, &j.doubt,
		&retry, &uniqueKey, &j.once, &j.IdempotencyKey, &group, &j.inLine, &labels, &schedule, &spec, &zone, &rule,
		&scheduledFor, &j.origin, &replay, &token, &reason, &errText, &createdAt, &startedAt, &finishedAt, &resumeAt)
	if err != nil {
		return err
	}
	j.Args, j.RunAt, j.CreatedAt = args, fromMicros(runAt), fromMicros(createdAt)
	j.UniqueKey, j.Group, j.Schedule, j.Spec, j.Zone = uniqueKey.String, group.String, schedule.String, spec.String, zone.String
	j.ReplayOf, j.Reason, j.Error, j.token = replay.String, reason.String, errText.String, token.Int64
	j.ScheduledFor, j.StartedAt, j.FinishedAt = nullTime(scheduledFor), nullTime(startedAt), nullTime(finishedAt)
	j.resumeAt, j.head = nullTime(resumeAt), spec.Valid
	if retry != nil {
		j.Retry = new(Retry)
		if err := json.Unmarshal(retry, j.Retry); err != nil {
			j.Retry = nil // an edited row: the kind's own policy is safe
		}
	}
	if labels != nil {
		_ = json.Unmarshal(labels, &j.Labels) // labels are for people; a broken object shows none
	}
	if rule != nil {
		j.ruleErr = json.Unmarshal(rule, &j.rule)
	}
	return nil
}

// decode reads the arguments as the kind's type. Fields that T doesn't have
// are ignored, so that old programs can read what newer ones enqueue.
func decode[T any](data []byte, into *T) error {
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %w", errUndecodable, err)
	}
	return nil
}

// Times stand in the database as microseconds since the epoch, and are handed
// out in UTC.

func micros(t time.Time) int64 { return t.UnixMicro() }

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }

func nullTime(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return fromMicros(us.Int64)
}

// stored is t as it is when it has been stored and read again.
func stored(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return fromMicros(micros(t))
}

// nullMicros is nil for the zero time.
func nullMicros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return micros(t)
}

// farFuture is later than every RunAt.
var farFuture = fromMicros(math.MaxInt64)

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// text is nil for the empty string: "none" is NULL in every table.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
