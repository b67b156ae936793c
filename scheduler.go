package rota

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Config is how a Scheduler works. The zero value is right for most; each
// field says what its zero means.
type Config struct {
	// Name tells this process from others in the evidence and in the lease.
	// Empty: host name and process id.
	Name string

	// MaxRunning bounds the handlers at work at once: at most 1,000,000. Zero
	// means 64.
	MaxRunning int

	// MaxHung bounds the handlers that ignored their ended context and whose
	// slots were given to others all the same. Zero means MaxRunning.
	MaxHung int

	// MaxArgs bounds the arguments of a job, in bytes of JSON. Zero means 1 MiB.
	MaxArgs int

	// LeaseTTL is how long the lease lasts without renewal; it is renewed at a
	// third of that. It bounds how late another process takes over from one
	// that is paused (one that dies is seen at once). Zero means 10 s.
	LeaseTTL time.Duration

	// Grace is how long running handlers may go on when Run is told to end,
	// before their contexts are cancelled. Zero means 10 s; negative, none.
	Grace time.Duration

	// Unwind is how long a handler may take to return once its context has
	// ended. After that its attempt is closed without it, as unknown. Zero
	// means 2 s.
	Unwind time.Duration

	// PollInterval is how often the runner looks whether another process has
	// committed something, and a waiting process whether the runner has died.
	// Either costs some microseconds and reads no table. Zero means 50 ms.
	// Negative means never: for a database that one process has for itself, and
	// for simulated years; a job of EnqueueTx is then seen within a LeaseTTL.
	PollInterval time.Duration

	// Durability is what an enqueue that was answered survives. Empty means
	// DurabilityFull.
	Durability Durability

	// Kinds overrides what Handle was given, field by field, for kinds by
	// their name: the operator's word against the programmer's.
	Kinds map[string]Policy

	// Redact sees every text of outside origin (errors, panics, notes) before
	// it is stored or logged, and returns what may be kept. Nil keeps all but
	// what the built-in masks hide: credentials in URLs and common tokens. It
	// must be safe for concurrent use.
	Redact func(string) string

	// Logger gets what a person should know. Nil means slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		host, _ := os.Hostname() // without a name the process id must do
		c.Name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	c.Name = safeText(c.Name, 200, nil)
	orDefault(&c.MaxRunning, 64)
	orDefault(&c.MaxHung, c.MaxRunning)
	orDefault(&c.MaxArgs, 1<<20)
	orDefault(&c.LeaseTTL, 10*time.Second)
	orDefault(&c.Grace, 10*time.Second)
	orDefault(&c.Unwind, 2*time.Second)
	orDefault(&c.PollInterval, 50*time.Millisecond)
	orDefault(&c.Durability, DurabilityFull)
	orDefault(&c.Logger, slog.Default())
	return c
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate reports every value that is not allowed. It matches ErrConfig.
func (c Config) validate() error { return c.check().err() }

func (c Config) check() faults {
	var f faults
	if c.MaxRunning < 0 || c.MaxRunning > 1_000_000 {
		f.bad("max_running", c.MaxRunning, "zero (64) to 1000000")
	}
	if c.MaxHung < 0 {
		f.bad("max_hung", c.MaxHung, "zero (max_running) or more")
	}
	if c.MaxArgs < 0 {
		f.bad("max_args", c.MaxArgs, "zero (1 MiB) or more bytes")
	}
	if c.LeaseTTL != 0 && c.LeaseTTL < 100*time.Millisecond {
		f.bad("lease_ttl", c.LeaseTTL, "zero (10s) or 100ms and more")
	}
	if c.Unwind < 0 {
		f.bad("unwind", c.Unwind, "zero (2s) or more")
	}
	if c.PollInterval > 0 && c.PollInterval < time.Millisecond {
		f.bad("poll_interval", c.PollInterval, "zero (50ms), 1ms and more, or negative (never)")
	}
	if d := c.Durability; d != "" && d != DurabilityFull && d != DurabilityNormal {
		f.bad("durability", quoted(d), `"full" or "normal"`)
	}
	for kind, p := range c.Kinds {
		key := keyOf("kinds", kind)
		if err := checkName("kind", kind); err != nil {
			f = append(f, &ConfigError{Key: key, Problem: "is no kind's name: " + err.Error()})
		}
		f.under(key, p.check())
	}
	return f
}

// Policy is how the jobs of a kind are run. The zero value is right for most.
type Policy struct {
	// Timeout bounds one attempt: its context ends with ErrTimeout, and the
	// outcome is unknown if the handler then returns an error. Zero means
	// 15 min; negative, no bound.
	Timeout time.Duration

	// Retry decides about failed attempts, unless the job brought its own.
	Retry Retry

	// MaxRunning bounds the handlers of this kind at work at once. Zero means
	// no bound but Config.MaxRunning.
	MaxRunning int

	// Rate bounds the attempts of this kind that begin in a span of time.
	Rate Rate

	// OnUnknown decides about attempts whose outcome can't be known.
	OnUnknown OnUnknown

	// Probe answers, for OnUnknown: UnknownProbe, whether the effect of an
	// earlier attempt took place. It gets the job as the handler would.
	Probe func(ctx context.Context, job *Job) (Verdict, error)

	// MaxDeaths bounds how often a job may have been at work when the process
	// died. Zero means 3.
	MaxDeaths int
}

// Rate allows Count beginnings in any span of Per. The zero value has no
// bound. Counting begins anew with each process.
type Rate struct {
	Count int
	Per   time.Duration
}

// OnUnknown says what becomes of a job whose outcome is unknown.
type OnUnknown string

const (
	// UnknownRetry, the default, tries again: for work that may be done twice,
	// or whose idempotency key keeps it from being done twice.
	UnknownRetry OnUnknown = "retry"
	// UnknownHold waits for a person's Resolve or Replay.
	UnknownHold OnUnknown = "hold"
	// UnknownProbe asks Policy.Probe at the next attempt, before the handler.
	UnknownProbe OnUnknown = "probe"
)

// Verdict is a probe's answer to: did it happen?
type Verdict string

const (
	Happened    Verdict = "yes"     // the job has succeeded
	NotHappened Verdict = "no"      // the handler is called
	CannotTell  Verdict = "unknown" // the job is held for a person
)

const (
	defaultTimeout   = 15 * time.Minute
	defaultMaxDeaths = 3
)

func (p Policy) withDefaults() Policy {
	p.Retry = p.Retry.withDefaults()
	orDefault(&p.Timeout, defaultTimeout)
	orDefault(&p.OnUnknown, UnknownRetry)
	orDefault(&p.MaxDeaths, defaultMaxDeaths)
	return p
}

func (p Policy) validate() error { return p.check().err() }

func (p Policy) check() faults {
	var f faults
	if p.MaxRunning < 0 {
		f.bad("max_running", p.MaxRunning, "zero (no bound of its own) or more")
	}
	if r := p.Rate; r.Count < 0 || r.Per < 0 || (r.Count == 0) != (r.Per == 0) {
		f.bad("rate", fmt.Sprintf("%d per %v", r.Count, r.Per), "a count and a span of time, both positive, or neither")
	}
	if p.MaxDeaths < 0 {
		f.bad("max_deaths", p.MaxDeaths, "zero (3) or more")
	}
	if u := p.OnUnknown; u != "" && u != UnknownRetry && u != UnknownHold && u != UnknownProbe {
		f.bad("on_unknown", quoted(u), `"retry", "hold" or "probe"`)
	}
	f.under("retry", p.Retry.check())
	return f
}

// override gives p with the fields that o sets.
func (p Policy) override(o Policy) Policy {
	override(&p.Timeout, o.Timeout)
	override(&p.Retry.Base, o.Retry.Base)
	override(&p.Retry.Factor, o.Retry.Factor)
	override(&p.Retry.Cap, o.Retry.Cap)
	override(&p.Retry.Jitter, o.Retry.Jitter)
	override(&p.Retry.MaxAttempts, o.Retry.MaxAttempts)
	override(&p.Retry.MaxElapsed, o.Retry.MaxElapsed)
	override(&p.MaxRunning, o.MaxRunning)
	override(&p.Rate, o.Rate)
	override(&p.OnUnknown, o.OnUnknown)
	override(&p.MaxDeaths, o.MaxDeaths)
	return p
}

func override[T comparable](field *T, value T) {
	var zero T
	if value != zero {
		*field = value
	}
}

// retryFor is the retry policy that counts for the job: its own, or the kind's.
func (p Policy) retryFor(job *Job) Retry {
	if job.Retry != nil {
		return job.Retry.withDefaults()
	}
	return p.Retry
}

// Scheduler keeps jobs in a Store and runs them. Its methods may be called from
// several goroutines at once.
type Scheduler struct {
	cfg    Config
	name   string // this instance in the evidence
	store  Store
	writer *writer
	log    *slog.Logger

	mu       sync.RWMutex // guards handlers, faults, declared
	handlers map[string]*handler
	faults   []error // what Handle and Declare found wrong; Run reports it
	declared []declaration

	wake chan struct{} // one token: there may be work
	hung atomic.Int64  // handlers that were given up and have not returned

	closing context.Context // done when Close has been called
	close   func() error
	running chan struct{} // one token while Run or RunDue is at work

	rates map[string]*rateWindow // by kind; owned by the one Run or RunDue
}

// handler is what Handle was given.
type handler struct {
	kind   string
	call   func(context.Context, *Job) error
	policy Policy
}

// Open opens or creates a SQLite database and brings Rota's tables in it up to
// date. The file may hold the application's own tables, too. A new file is
// readable by its owner only. The path ":memory:" gives a database that ends
// with the Scheduler, for tests. Several processes may open one file; each may
// enqueue, and one of those that call Run is the runner.
//
// It fails, and changes nothing, if the file is no SQLite database
// (ErrNotDatabase), was written by a newer version (ErrNewerSchema), can't be
// written, or if cfg is wrong (ErrConfig).
func Open(path string, cfg Config) (*Scheduler, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("rota: open %s: %w", path, err)
	}
	cfg = cfg.withDefaults()
	store, err := openSQLite(context.Background(), path, cfg.Durability)
	if err != nil {
		return nil, err
	}
	return newScheduler(store, cfg), nil
}

// New makes a Scheduler on a Store, whose owner it becomes: Close closes it.
// cfg.Durability is the Store's own matter.
func New(store Store, cfg Config) (*Scheduler, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("rota: %w", err)
	}
	return newScheduler(store, cfg.withDefaults()), nil
}

func newScheduler(store Store, cfg Config) *Scheduler {
	s := &Scheduler{
		cfg: cfg, store: store, log: cfg.Logger,
		name:     cfg.Name + ":" + uuid.NewString()[:8],
		handlers: make(map[string]*handler),
		rates:    make(map[string]*rateWindow),
		wake:     make(chan struct{}, 1),
		running:  make(chan struct{}, 1),
	}
	s.writer = startWriter(store, s.wakeUp)
	closing, cancel := context.WithCancel(context.Background())
	s.closing = closing
	s.close = sync.OnceValue(func() error {
		cancel()
		s.running <- struct{}{} // Run has returned, and none begins any more
		s.writer.close()
		err := store.Close()
		if n := s.hung.Load(); n > 0 {
			err = errors.Join(fmt.Errorf("rota: close: %w: %d of them ignore their context", ErrHandlersLeft, n), err)
		}
		return err
	})
	return s
}

// Close ends Run as if its context were done, waits for it, commits what is
// queued and closes the database. It fails with ErrHandlersLeft if handlers are
// still at work that ignore their context. It returns the same error however
// often it is called.
func (s *Scheduler) Close() error { return s.close() }

// DB is a pool on the database, for the application's own tables: its
// transactions begin as writing ones and wait for each other, and for Rota, so
// keep them short: while one is open nothing else is written. Six may be open
// at once; two more connections are Rota's own. EnqueueTx and
// CompleteTx take a transaction of this pool or of any other on the same file.
func (s *Scheduler) DB() *sql.DB { return s.store.DB() }

// Handle says which function does the jobs of a kind, and how. A kind without
// a handler is left alone: its jobs wait, for this program's next version or
// for another process. Handle may be called at any time; what is wrong with its
// arguments is returned by Run. A second handler for the kind is such a fault.
//
// The function gets a context that ends with the attempt's timeout, with the
// runner's shutdown after the grace, with the loss of the lease, or when a
// person cancels the job; context.Cause says which. What it returns says what
// comes next: nil for success, also when it comes late; any error for a retry;
// or an error made by Permanent, RetryAfter, AtMost, Unknown, Snooze or
// HTTPError. A panic is a failure, with its stack kept in the evidence. A
// handler that ignores its context is recorded as unknown and loses its slot,
// not its goroutine: nothing can take that from it.
func Handle[T any](s *Scheduler, kind Kind[T], do func(ctx context.Context, job *Job, args T) error, policy Policy) {
	h := &handler{kind: string(kind), policy: policy.override(s.cfg.Kinds[string(kind)]).withDefaults()}
	h.call = func(ctx context.Context, job *Job) error {
		var args T
		if err := decode(job.Args, &args); err != nil {
			return err
		}
		return do(ctx, job, args)
	}
	err := errors.Join(checkName("kind", h.kind), policy.validate())
	if h.policy.OnUnknown == UnknownProbe && policy.Probe == nil {
		err = errors.Join(err, fmt.Errorf("%w: on_unknown is probe, but the policy has no Probe", ErrConfig))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handlers[h.kind] != nil {
		err = errors.Join(err, fmt.Errorf("%w: it has a handler already", ErrConfig))
	}
	if err != nil {
		s.faults = append(s.faults, fmt.Errorf("rota: handle %s: %w", kind, err))
		return
	}
	s.handlers[h.kind] = h
	s.wakeUp()
}

// Run competes for the lease, and while it has it, runs what is due. It
// returns when ctx is done: it claims nothing more, gives running handlers
// Config.Grace to end, then cancels their contexts with ErrShutdown, waits
// another Config.Unwind, records what came of them, and releases the lease
// last. Attempts that it interrupted are due again at once and do not count.
//
// It returns nil after a clean end, ErrHandlersLeft if handlers are still at
// work, ErrRunning if Run or RunDue is at work already, ErrClosed, or the
// faults of Handle and Declare. Trouble with the database while it runs is
// logged, and it goes on when the trouble is over.
func (s *Scheduler) Run(ctx context.Context) error {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	c := contest{s: s}
	for {
		token, err := c.compete(ctx)
		if err != nil {
			return nil // ctx is done: a normal end
		}
		s.log.InfoContext(ctx, "rota: this process is the runner", "runner", s.name, "token", token)
		t := newTerm(s, &c, token)
		err = t.serve(ctx, false)
		if ctx.Err() != nil {
			if errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrHandlersLeft) {
				return nil // what was to be given back is another's already
			}
			return err
		}
		s.log.WarnContext(ctx, "rota: no longer the runner", "runner", s.name, "token", token, "error", s.safe(err))
	}
}

// RunDue runs what is due, and what that makes due, and returns when nothing
// is: the attempts that it closed, in the order of their ends. It waits for
// nothing that lies in the future, nor for a kind's rate. It is for programs
// that a timer starts, and for tests, which move time with testing/synctest.
//
// It fails with ErrLeaseHeld if another runner is at work. If ctx ends first,
// it ends as Run does and returns ctx's error beside the attempts.
func (s *Scheduler) RunDue(ctx context.Context) ([]Attempt, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	c := contest{s: s}
	token, err := c.try(ctx)
	if err != nil {
		return nil, fmt.Errorf("rota: run what is due: %w", err)
	}
	if token == 0 {
		return nil, fmt.Errorf("rota: run what is due: %w: %s", ErrLeaseHeld, cmp.Or(c.seen.Holder, "one that is about to begin"))
	}
	t := newTerm(s, &c, token)
	err = errors.Join(t.serve(ctx, true), ctx.Err())
	// Two that ended close together may have been recorded the other way round;
	// in simulated time, also two of one job.
	slices.SortFunc(t.closed, func(a, b Attempt) int {
		return cmp.Or(a.FinishedAt.Compare(b.FinishedAt), cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Number, b.Number))
	})
	return t.closed, err
}

// begin makes sure that one Run or RunDue is at work at a time, and lets Close
// end it.
func (s *Scheduler) begin(ctx context.Context) (context.Context, func(), error) {
	s.mu.RLock()
	err := errors.Join(s.faults...)
	s.mu.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	if s.closing.Err() != nil {
		return nil, nil, fmt.Errorf("rota: run: %w", ErrClosed)
	}
	select {
	case s.running <- struct{}{}:
	default:
		if s.closing.Err() != nil { // Close has just come in between
			return nil, nil, fmt.Errorf("rota: run: %w", ErrClosed)
		}
		return nil, nil, fmt.Errorf("rota: run: %w", ErrRunning)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.closing, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		<-s.running
	}, nil
}

func (s *Scheduler) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// handler is the kind's handler, or nil.
func (s *Scheduler) handler(kind string) *handler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.handlers[kind]
}

// policy is the kind's policy, or the default one for a kind without a handler.
func (s *Scheduler) policy(kind string) Policy {
	if h := s.handler(kind); h != nil {
		return h.policy
	}
	return Policy{}.withDefaults()
}

// kinds are the names of the kinds that this process can do.
func (s *Scheduler) kinds() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	names := make([]string, 0, len(s.handlers))
	for name := range s.handlers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// safe is err's text, fit for a log.
func (s *Scheduler) safe(err error) string {
	return safeText(errorText(err), maxErrorText, s.cfg.Redact)
}
