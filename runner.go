package rota

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// term is one reign of a runner: from getting the lease to giving it back. Its
// loop, in Run's own goroutine, alone decides what is claimed; it starts one
// goroutine for the lease and one for each attempt, and waits for all of them.
type term struct {
	s     *Scheduler
	lease *contest
	token int64

	// Owned by the loop.
	running map[string]*execution // by job id
	perKind map[string]int
	rates   map[string]*rateWindow // the Scheduler's, for which one term at a time is at work
	watched int64                  // the Store's last Version
	alone   bool                   // a job runs of which one is allowed at a time

	ended  chan *execution // one for each execution, when its slot is free
	lost   chan struct{}   // closed when the lease is another's
	atWork sync.WaitGroup  // executions, until their ends are written

	// writing ends when it is no use any more to write ends.
	writing     context.Context
	stopWriting context.CancelFunc

	mu       sync.Mutex      // guards all below
	handlers context.Context // parent of the handlers' contexts
	cancel   context.CancelCauseFunc
	fenced   bool      // the lease was not renewed in time: claim nothing
	collect  bool      // RunDue wants to know
	closed   []Attempt // what it wants to know
}

func newTerm(s *Scheduler, c *contest, token int64) *term {
	t := &term{
		s: s, lease: c, token: token,
		running: make(map[string]*execution),
		perKind: make(map[string]int),
		rates:   s.rates,
		ended:   make(chan *execution, s.cfg.MaxRunning),
		lost:    make(chan struct{}),
	}
	t.handlers, t.cancel = context.WithCancelCause(context.Background())
	t.writing, t.stopWriting = context.WithCancel(context.Background())
	return t
}

// serve reigns until ctx is done, the lease is lost or, with untilIdle, nothing
// is due. When it returns, every goroutine of the term has ended but those of
// handlers that ignore their context.
func (t *term) serve(ctx context.Context, untilIdle bool) error {
	t.collect = untilIdle
	keeping, stopKeeping := context.WithCancel(context.Background())
	var keeper sync.WaitGroup
	keeper.Go(func() { t.keepLease(keeping) })

	err := t.takeOver(ctx)
	if err == nil {
		err = t.loop(ctx, untilIdle)
	}
	err = errors.Join(err, t.drain(untilIdle && ctx.Err() == nil && err == nil))

	stopKeeping() // the last: the lease is renewed as long as a handler runs
	keeper.Wait()
	t.cancel(nil)
	release, cancel := context.WithTimeout(context.Background(), t.s.cfg.LeaseTTL)
	defer cancel()
	return errors.Join(err, t.lease.release(release, t.token))
}

// takeOver brings the tables in order before anything is claimed.
func (t *term) takeOver(ctx context.Context) error {
	if err := t.untilDone(ctx, "close what an earlier runner left", t.closeOrphans); err != nil {
		return err
	}
	return t.untilDone(ctx, "reconcile the schedules", t.reconcile)
}

// untilDone repeats what trouble with the database kept from happening.
func (t *term) untilDone(ctx context.Context, what string, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil || errors.Is(err, ErrLeaseLost) || t.collect {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		t.s.log.ErrorContext(ctx, "rota: can't "+what+"; trying again", "error", t.s.safe(err))
		select {
		case <-time.After(time.Second):
		case <-t.lost:
			return ErrLeaseLost
		case <-ctx.Done():
			return nil
		}
	}
}

// loop claims what is due whenever there may be something, and otherwise
// sleeps until the next job is.
func (t *term) loop(ctx context.Context, untilIdle bool) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var poll <-chan time.Time
	if d := t.s.cfg.PollInterval; d > 0 {
		ticker := time.NewTicker(d)
		defer ticker.Stop()
		poll = ticker.C
	}
	next := time.Now()
	for ctx.Err() == nil {
		if !time.Now().Before(next) {
			var err error
			next, err = t.claim(ctx)
			if untilIdle && (err != nil || len(t.running) == 0 && next.After(time.Now())) {
				return err
			}
			if poll == nil && !untilIdle {
				// Nothing tells of an EnqueueTx that commits.
				next = earlier(next, time.Now().Add(t.s.cfg.LeaseTTL))
			}
			// By the wall clock, which may be set, so not for too long.
			timer.Reset(min(time.Until(next), time.Minute))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.lost:
			return ErrLeaseLost
		case x := <-t.ended:
			t.leave(x)
			for len(t.ended) > 0 { // one claim for all of them
				t.leave(<-t.ended)
			}
			next = time.Now()
		case <-t.s.wake:
			next = time.Now()
		case <-poll:
			if t.othersWrote(ctx) {
				next = time.Now()
			}
		case <-timer.C:
			timer.Reset(min(max(time.Until(next), time.Millisecond), time.Minute))
		}
	}
	return nil
}

// othersWrote asks whether another connection has committed since last asked.
func (t *term) othersWrote(ctx context.Context) bool {
	version, err := t.s.store.Version(ctx)
	if err != nil {
		return false // the next claim meets the trouble, and reports it
	}
	changed := version != t.watched
	t.watched = version
	return changed
}

// claim starts what is due and returns when to look again.
func (t *term) claim(ctx context.Context) (time.Time, error) {
	if t.isFenced() {
		return time.Now().Add(t.s.cfg.LeaseTTL / 10), nil
	}
	found, err := t.claimDue(ctx)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, ErrLeaseLost) {
			t.s.log.ErrorContext(ctx, "rota: can't claim; trying again", "error", t.s.safe(err))
		}
		return time.Now().Add(time.Second), err
	}
	for _, id := range found.cancel {
		if x := t.running[id]; x != nil {
			x.stop(ErrCancelled)
		}
	}
	for _, job := range found.jobs {
		t.start(job)
	}
	_, later := t.wants(time.Now()) // what has now used up its rate
	return earlier(found.next, later), nil
}

// start gives a claimed job to its handler, in a goroutine of its own.
func (t *term) start(job *Job) {
	x := job.run
	x.began = time.Now()
	t.mu.Lock()
	x.ctx, x.stop = context.WithCancelCause(t.handlers)
	t.mu.Unlock()
	t.running[job.ID] = x
	t.perKind[job.Kind]++
	if w := t.rates[job.Kind]; w != nil {
		w.began = append(w.began, x.began)
	}
	t.alone = t.alone || x.alone
	t.atWork.Go(x.execute)
}

// leave frees the slot of an execution.
func (t *term) leave(x *execution) {
	delete(t.running, x.job.ID)
	if x.alone {
		t.alone = false
	}
	if t.perKind[x.job.Kind]--; t.perKind[x.job.Kind] == 0 {
		delete(t.perKind, x.job.Kind)
	}
}

// drain waits for the handlers: for the grace as they are, for the unwinding
// with their contexts cancelled. What has not returned by then is written as
// unknown by its execution, which gives it up.
func (t *term) drain(idle bool) error {
	defer t.stopWriting()
	done := make(chan struct{})
	go func() { // ends with the executions, which all end
		t.atWork.Wait()
		close(done)
	}()
	grace := time.NewTimer(max(t.s.cfg.Grace, 0))
	defer grace.Stop()
	if idle {
		<-done
	}
	select {
	case <-done:
	case <-t.lost:
		t.stopHandlers(ErrLeaseLost)
	case <-grace.C:
		t.stopHandlers(ErrShutdown)
	}
	// The ends are written within the unwinding and, if the database is
	// locked, some more: the lease of a runner that stops must end some day.
	limit := time.AfterFunc(t.s.cfg.Unwind+t.s.cfg.LeaseTTL, t.stopWriting)
	defer limit.Stop()
	<-done
	if n := t.s.hung.Load(); n > 0 {
		return fmt.Errorf("rota: %w: %d of them ignore their context", ErrHandlersLeft, n)
	}
	return nil
}

// stopHandlers cancels every handler's context for this cause.
func (t *term) stopHandlers(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cancel(cause)
}

// keepLease renews the lease at a third of its TTL, and fences the term when it
// could not: trust is counted from the start of the last renewal that
// succeeded, on the monotonic clock, whatever the wall clock says.
func (t *term) keepLease(ctx context.Context) {
	ttl := t.s.cfg.LeaseTTL
	fence := time.AfterFunc(ttl, t.fence)
	defer fence.Stop()
	timer := time.NewTimer(ttl / 3)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		err := t.lease.renew(ctx, t.token)
		switch {
		case err == nil && time.Since(began) >= ttl:
			timer.Reset(0) // it came too late to be trusted
		case err == nil:
			fence.Reset(ttl - time.Since(began))
			t.unfence()
			timer.Reset(ttl / 3)
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrLeaseLost):
			t.stopHandlers(ErrLeaseLost)
			close(t.lost)
			return
		default:
			t.s.log.WarnContext(ctx, "rota: can't renew the lease; trying again", "error", t.s.safe(err))
			timer.Reset(ttl / 10)
		}
	}
}

// fence stops the handlers and all claiming: another may be the runner now.
func (t *term) fence() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fenced = true
	t.cancel(ErrLeaseLost)
	t.s.log.Warn("rota: the lease was not renewed in time; handlers are cancelled", "runner", t.s.name, "token", t.token)
}

// unfence follows a renewal: nobody has taken over, so the term goes on.
func (t *term) unfence() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fenced {
		t.fenced = false
		t.handlers, t.cancel = context.WithCancelCause(context.Background())
		t.s.wakeUp()
	}
}

func (t *term) isFenced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fenced
}

// execution is one attempt at work.
type execution struct {
	t       *term
	job     *Job
	handler *handler
	redact  func(string) string
	claimed time.Time // as it stands in the evidence
	alone   bool
	began   time.Time // with its monotonic part, for durations
	ctx     context.Context
	stop    context.CancelCauseFunc
	notes   notes

	// Set by the handler's goroutine, which may outlive the attempt.
	started   atomic.Pointer[time.Time]  // as it stands in the evidence; nil: the handler has not begun
	completed atomic.Pointer[attemptEnd] // what CompleteTx has written, if its transaction commits
	cleared   atomic.Bool                // the probe said that the earlier attempt did nothing
}

func (x *execution) startedAt() time.Time {
	if at := x.started.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// execute runs the attempt, writes its end and frees its slot. The slot is free
// as soon as the end is queued: whatever is claimed next is committed after it.
func (x *execution) execute() {
	t := x.t
	r := x.attempt()
	x.stop(nil)
	end := x.close(r)
	wr := t.s.writer.add(&write{token: t.token, apply: end.write})
	t.ended <- x
	err := t.s.writer.wait(t.writing, wr)
	for wait := 100 * time.Millisecond; err != nil; wait = min(2*wait, 5*time.Second) {
		if errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrState) || errors.Is(err, ErrClosed) || t.writing.Err() != nil {
			t.s.log.Warn("rota: an attempt's end could not be written; the next runner closes it as unknown",
				"kind", x.job.Kind, "job", x.job.ID, "attempt", x.job.Attempt, "error", t.s.safe(err))
			return
		}
		t.s.log.Error("rota: can't write an attempt's end; trying again", "job", x.job.ID, "error", t.s.safe(err))
		select {
		case <-time.After(wait):
		case <-t.writing.Done():
		}
		err = t.s.writer.doFenced(t.writing, t.token, end.write)
	}
	x.report(end)
}

// report tells the log, and RunDue, what came of the attempt.
func (x *execution) report(e *attemptEnd) {
	if e.done {
		e = e.completed
	}
	if e.decision.state == Dead || e.decision.state == Held {
		x.t.s.log.Warn("rota: job is "+string(e.decision.state), "kind", x.job.Kind, "job", x.job.ID,
			"attempt", x.job.Attempt, "reason", e.decision.reason, "error", e.errText)
	}
	x.t.record(e.attempt())
}

func (t *term) record(closed ...Attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.collect {
		t.closed = append(t.closed, closed...)
	}
}

// attempt calls the handler and waits until it returns, or until it has not
// for the unwinding's time after its context ended.
func (x *execution) attempt() result {
	ctx := x.ctx
	if d := x.handler.policy.Timeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, ErrTimeout)
		defer cancel()
	}
	if err := x.markStarted(ctx); err != nil {
		return result{verdict: verdict{outcome: OutcomeInterrupted, class: classNotStarted, after: -1, err: err}}
	}
	returned := make(chan error, 1)
	go func() { // waited for below; given up only if it ignores its context
		err := errGoexit
		defer func() {
			if p := recover(); p != nil {
				err = &panicked{value: p, stack: string(debug.Stack())}
			}
			returned <- err
		}()
		err = x.call(ctx)
	}()
	select {
	case err := <-returned:
		return x.classify(err, ctx)
	case <-ctx.Done():
	}
	unwind := time.NewTimer(x.t.s.cfg.Unwind)
	defer unwind.Stop()
	select {
	case err := <-returned:
		return x.classify(err, ctx)
	case <-unwind.C:
	}
	x.t.s.hung.Add(1)
	go func() { // as long as the handler lives, which nobody can end
		<-returned
		x.t.s.hung.Add(-1)
		x.t.s.wakeUp()
	}()
	return x.givenUp(context.Cause(ctx))
}

// call asks the probe, if an earlier attempt left a doubt, and the handler.
func (x *execution) call(ctx context.Context) error {
	p, job := x.handler.policy, x.job.copied() // what it does to its job is no evidence
	if job.doubt && p.OnUnknown == UnknownProbe {
		verdict, err := p.Probe(ctx, job)
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		job.Note("probe", string(verdict))
		switch verdict {
		case Happened:
			return errHappened
		case NotHappened:
			x.cleared.Store(true)
		default:
			return errCannotTell
		}
		if err := x.begin(ctx); err != nil {
			return err
		}
	}
	return x.handler.call(ctx, job)
}

// What a probe's verdict makes of the attempt.
var (
	errHappened   = errors.New("the probe found that the effect took place")
	errCannotTell = errors.New("the probe can't tell whether the effect took place")
)

// classify is the one place's verdict, and what only an execution knows.
func (x *execution) classify(err error, ctx context.Context) result {
	switch {
	case errors.Is(err, errHappened):
		return result{verdict: verdict{outcome: OutcomeSucceeded, class: classProbe, after: -1}}
	case errors.Is(err, errCannotTell):
		return result{verdict: verdict{outcome: OutcomeUnknown, class: classProbe, after: -1, err: err}}
	}
	var cause error
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	return classify(err, cause)
}

// givenUp is the result of a handler that ignores its ended context.
func (x *execution) givenUp(cause error) result {
	r := result{verdict: verdict{outcome: OutcomeUnknown, class: classTimeout, after: -1,
		err: fmt.Errorf("the handler did not return within %v of the end of its context: %w", x.t.s.cfg.Unwind, cause)}}
	switch {
	case errors.Is(cause, ErrCancelled):
		r.outcome, r.class = OutcomeCancelled, classCancelled
	case errors.Is(cause, ErrShutdown):
		r.class = classShutdown
	case errors.Is(cause, ErrLeaseLost):
		r.class = classLeaseLost
	}
	return r
}

// markStarted commits that the handler begins, for kinds where it matters
// whether a lost attempt had begun. A probe has no effect, so there the mark
// comes after it.
func (x *execution) markStarted(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p := x.handler.policy
	if p.OnUnknown == UnknownRetry || x.job.doubt && p.OnUnknown == UnknownProbe {
		return nil
	}
	return x.begin(ctx)
}

func (x *execution) begin(ctx context.Context) error {
	now := time.Now()
	err := x.t.s.writer.doFenced(ctx, x.t.token, func(ctx context.Context, tx Tx) error {
		res, err := tx.ExecContext(ctx, sqlStartAttempt, x.job.ID, x.job.Attempt, micros(now))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, fmt.Errorf("attempt %d was given up: %w", x.job.Attempt, ErrState))
		}
		return nil
	})
	if err == nil {
		x.started.Store(&now)
	}
	return err
}

// rateWindow remembers the last beginnings of a kind, as many as its Rate
// allows in a span: the next may begin when the oldest is a span ago.
type rateWindow struct {
	began []time.Time // oldest first
}

// free is how many may begin now, and when the next may if none.
func (w *rateWindow) free(r Rate, now time.Time) (int, time.Time) {
	for len(w.began) > 0 && now.Sub(w.began[0]) >= r.Per {
		w.began = w.began[1:]
	}
	if n := r.Count - len(w.began); n > 0 {
		return n, time.Time{}
	}
	return 0, w.began[0].Add(r.Per)
}
