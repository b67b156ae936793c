package rota

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Outcome is what came of one attempt. It is written once, when the attempt
// closes.
type Outcome string

const (
	// OutcomeSucceeded: the handler returned nil, also when it did so after its
	// deadline, or CompleteTx was committed.
	OutcomeSucceeded Outcome = "succeeded"
	// OutcomeRetry: it failed, and it will be tried again.
	OutcomeRetry Outcome = "retry"
	// OutcomeFailed: it failed for good; the job is dead.
	OutcomeFailed Outcome = "failed"
	// OutcomeUnknown: nobody can tell whether the effect took place: a timeout,
	// a connection cut after the request was sent, the death of the process.
	OutcomeUnknown Outcome = "unknown"
	// OutcomeInterrupted: the runner stopped, or the handler had not begun.
	OutcomeInterrupted Outcome = "interrupted"
	// OutcomeCancelled: a person cancelled it.
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeSnoozed: the handler asked for a later time; nothing was tried.
	OutcomeSnoozed Outcome = "snoozed"
	// OutcomeSkipped: a schedule's firing that its policies leave out.
	OutcomeSkipped Outcome = "skipped"
)

// Classes tell outcomes apart by cause. HTTPError adds http_NNN.
const (
	classOK          = "ok"
	classError       = "error"
	classPermanent   = "permanent"
	classPanic       = "panic"
	classGoexit      = "goexit"
	classTimeout     = "timeout"
	classConnection  = "connection"
	classUnknown     = "unknown"
	classUndecodable = "undecodable"
	classSnooze      = "snooze"
	classCancelled   = "cancelled"
	classShutdown    = "shutdown"
	classLeaseLost   = "lease_lost"
	classProcessDied = "process_died"
	classNotStarted  = "not_started"
	classProbe       = "probe"
	classNotComplete = "not_committed"
)

// Reasons say why a job is in its state: columns of that name, and Job.Reason.
const (
	reasonSucceeded   = "succeeded"
	reasonRetry       = "retry"        // pending: the policy's delay
	reasonRetryAfter  = "retry_after"  // pending: as late as was asked for
	reasonSnoozed     = "snoozed"      // pending: the handler's wish
	reasonInterrupted = "interrupted"  // pending: at once
	reasonUnknown     = "unknown"      // pending: the kind retries or probes; held: it holds
	reasonExhausted   = "exhausted"    // dead: MaxAttempts, or AtMost
	reasonExpired     = "expired"      // dead: MaxElapsed
	reasonPermanent   = "permanent"    // dead
	reasonUndecodable = "undecodable"  // dead
	reasonProcessDied = "process_died" // pending, or dead: MaxDeaths
	reasonCancelled   = "cancelled"
	reasonResolved    = "resolved" // by a person
	reasonOverlap     = "overlap"  // cancelled: the last occurrence still ran
	reasonTooLate     = "too_late" // cancelled: a missed firing that is not made up
	reasonPaused      = "paused"   // paused; or cancelled: a firing that came in a pause
	reasonBroken      = "broken"   // paused: the schedule's spec can't be read
)

// MaxRetryAfter is the longest delay that RetryAfter and a Retry-After header
// are followed to; what asks for more is tried again after this long.
const MaxRetryAfter = 7 * 24 * time.Hour

// verdict is the mark that Permanent and its kin put on an error.
type verdict struct {
	outcome Outcome       // "" leaves it to the error below
	class   string        // "" likewise
	after   time.Duration // asked delay; negative: none asked
	until   time.Time     // asked instant; zero: none asked
	atMost  int           // 0: no bound of its own
	err     error
}

func (v *verdict) Error() string {
	if v.err == nil {
		return "snoozed for " + v.after.String()
	}
	return v.err.Error()
}
func (v *verdict) Unwrap() error { return v.err }

// Permanent says that trying again can't help: the job is dead at once.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{outcome: OutcomeFailed, class: classPermanent, after: -1, err: err}
}

// RetryAfter says when to try again, whatever the policy's Cap, up to
// MaxRetryAfter. The attempt counts. RetryAfter of a nil error is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdict{after: max(d, 0), err: err}
}

// AtMost gives the job at most n attempts in all, if the policy allows that
// many: a failure that one or two more tries may mend. AtMost of a nil error
// is nil.
func AtMost(n int, err error) error {
	if err == nil {
		return nil
	}
	return &verdict{after: -1, atMost: max(n, 1), err: err}
}

// Unknown says that the effect may or may not have taken place. The kind's
// OnUnknown decides what comes next. Unknown(nil) is nil.
func Unknown(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{outcome: OutcomeUnknown, after: -1, err: err}
}

// Snooze puts the job off by d, as if it had not been tried: the attempt is on
// record and doesn't count.
func Snooze(d time.Duration) error {
	return &verdict{outcome: OutcomeSnoozed, class: classSnooze, after: max(d, 0)}
}

// HTTPError classifies a response: nil below 400; 408, 425, 429, 502, 503 and
// 504 retryable, at the time that Retry-After gives in seconds or as a date
// (RFC 9110, 10.2.3); 500 and other server errors at most two retries; every
// other client error permanent. It does not touch the body.
func HTTPError(resp *http.Response) error {
	if resp.StatusCode < 400 {
		return nil
	}
	text := "http status " + resp.Status
	if r := resp.Request; r != nil && r.URL != nil {
		text = fmt.Sprintf("%s %s://%s%s: %s", r.Method, r.URL.Scheme, r.URL.Host, r.URL.Path, text)
	}
	v := &verdict{after: -1, class: "http_" + strconv.Itoa(resp.StatusCode), err: errors.New(text)}
	switch code := resp.StatusCode; {
	case code == 408, code == 425, code == 429, code >= 502 && code <= 504:
		v.after, v.until = parseRetryAfter(resp.Header)
	case code >= 500:
		v.atMost = 3
	default:
		v.outcome = OutcomeFailed
	}
	return v
}

// parseRetryAfter reads the delay or the instant that the header asks for. A
// date is taken relative to the server's own Date, so that a difference
// between the two clocks does not matter. A negative delay means none.
func parseRetryAfter(h http.Header) (time.Duration, time.Time) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return -1, time.Time{}
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if limit := int64(MaxRetryAfter / time.Second); err != nil || seconds > limit {
			seconds = limit
		}
		return time.Duration(seconds) * time.Second, time.Time{}
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return -1, time.Time{}
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		return max(at.Sub(date), 0), time.Time{}
	}
	return -1, at
}

// result is what an attempt came to, before any policy has looked at it.
type result struct {
	verdict
	stack  string
	reason string // overrides the decision's own
}

// panicked carries a handler's panic, and errGoexit its silent end.
type panicked struct {
	value any
	stack string
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

var errGoexit = errors.New("handler ended by runtime.Goexit, without a result")

// errUndecodable marks arguments that do not fit the kind's type.
var errUndecodable = errors.New("arguments can't be decoded")

// classify says what a handler's error means. cause is why its context ended,
// or nil. It is the only place that does.
func classify(err, cause error) result {
	if err == nil {
		return result{verdict: verdict{outcome: OutcomeSucceeded, class: classOK, after: -1}}
	}
	r := result{verdict: verdict{after: -1, err: err}}
	marked := false
	for e, v := err, (*verdict)(nil); errors.As(e, &v); e = v.err {
		marked = true
		r.merge(v)
		if v.err == nil {
			break
		}
	}
	switch {
	case r.outcome == OutcomeUnknown && r.class == "":
		r.class = classUnknown
		if isTimeout(err) {
			r.class = classTimeout
		} else if isCut(err) {
			r.class = classConnection
		}
		return r
	case r.outcome != "":
		return r
	}
	var p *panicked
	switch {
	case errors.As(err, &p):
		r.outcome, r.class, r.stack = OutcomeRetry, classPanic, p.stack
	case errors.Is(err, errGoexit):
		r.outcome, r.class = OutcomeRetry, classGoexit
	case errors.Is(err, errUndecodable):
		r.outcome, r.class = OutcomeFailed, classUndecodable
	case errors.Is(cause, ErrCancelled):
		r.outcome, r.class = OutcomeCancelled, classCancelled
	case marked && !wasEnded(err): // the handler knows what it wants, whatever the cause
		r.outcome = OutcomeRetry
	case errors.Is(cause, ErrShutdown):
		r.outcome, r.class = OutcomeInterrupted, classShutdown
	case errors.Is(cause, ErrLeaseLost):
		r.outcome, r.class = OutcomeInterrupted, classLeaseLost
	case notSent(err):
		r.outcome = OutcomeRetry
	case errors.Is(cause, ErrTimeout), isTimeout(err):
		r.outcome, r.class = OutcomeUnknown, classTimeout
	case isCut(err):
		r.outcome, r.class = OutcomeUnknown, classConnection
	default:
		r.outcome = OutcomeRetry
	}
	if r.class == "" {
		r.class = classError
	}
	return r
}

// merge adds what a mark further in says to what those around it left open.
func (r *result) merge(v *verdict) {
	if r.outcome == "" {
		r.outcome = v.outcome
	}
	if r.class == "" {
		r.class = v.class
	}
	if r.after < 0 && r.until.IsZero() {
		r.after, r.until = v.after, v.until
	}
	if r.atMost == 0 {
		r.atMost = v.atMost
	}
}

// wasEnded: the error is no answer, but tells that waiting for one was ended.
// AtMost and RetryAfter around it say how to go on, not that nothing happened.
func wasEnded(err error) bool {
	return errors.Is(err, context.Canceled) || isTimeout(err) || isCut(err)
}

// notSent: the connection was never made, so the request can't have arrived.
func notSent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &dns) || errors.Is(err, syscall.ECONNREFUSED)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &t) && t.Timeout()
}

// isCut: the other side, or the wire, went away after the connection was made.
// A bare EOF is an ordinary error (a file that ends too early); from the
// network it is a cut.
func isCut(err error) bool {
	var op *net.OpError
	var u *url.Error
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED) ||
		(errors.As(err, &op) || errors.As(err, &u)) && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF))
}

// decision is what is done about a result: the job's next state, and why. It
// explains itself: the bound and the range of the delay are those it used.
type decision struct {
	state    State
	reason   string
	delay    time.Duration // pending only
	spent    bool          // the attempt counts against MaxAttempts
	died     bool          // the attempt counts against MaxDeaths
	alone    bool          // one more death is the last that the job may have
	bound    int           // attempts allowed; 0: no bound was asked
	shortest time.Duration
	longest  time.Duration
}

// decide applies a kind's policy to a result. job stands as it was claimed; now
// is when the attempt ended; doubt says that what an earlier attempt did is not
// known, and no probe has found out. It is the only place that does.
func decide(job *Job, p Policy, r *result, now time.Time, doubt bool) decision {
	d := decideResult(job, p, r, now)
	if d.state == Dead && doubt && p.OnUnknown == UnknownProbe {
		// All that failed is the asking: whether it happened is for a person.
		d.state, d.reason, r.outcome = Held, reasonUnknown, OutcomeUnknown
	}
	if d.state == Dead && r.outcome == OutcomeRetry {
		r.outcome = OutcomeFailed
	}
	return d
}

// decideResult decides as if no earlier attempt were in doubt.
func decideResult(job *Job, p Policy, r *result, now time.Time) decision {
	switch r.outcome {
	case OutcomeSucceeded:
		return decision{state: Succeeded, reason: reasonSucceeded, spent: true}
	case OutcomeFailed:
		reason := reasonPermanent
		if r.class == classUndecodable {
			reason = reasonUndecodable
		}
		return decision{state: Dead, reason: reason, spent: true}
	case OutcomeCancelled:
		return decision{state: Cancelled, reason: reasonCancelled}
	case OutcomeSkipped:
		return decision{state: Cancelled, reason: r.reason}
	case OutcomeSnoozed:
		return decision{state: Pending, reason: reasonSnoozed, delay: r.after, shortest: r.after, longest: r.after}
	case OutcomeInterrupted:
		return decision{state: Pending, reason: reasonInterrupted}
	}
	d := decideRetry(job, p, r, now)
	if r.outcome == OutcomeUnknown && (p.OnUnknown == UnknownHold || r.class == classProbe ||
		p.OnUnknown == UnknownProbe && d.state != Pending) {
		// Also where the probe can't tell, or may not be asked again.
		d.state, d.reason, d.delay, d.shortest, d.longest = Held, reasonUnknown, 0, 0, 0
	}
	return d
}

// decideRetry asks the bounds and draws the delay.
func decideRetry(job *Job, p Policy, r *result, now time.Time) decision {
	retry := p.retryFor(job)
	d := decision{state: Pending, reason: reasonRetry, bound: retry.MaxAttempts}
	if r.outcome == OutcomeUnknown {
		d.reason = reasonUnknown
	}
	if r.outcome == OutcomeUnknown && (r.class == classProcessDied || r.class == classShutdown || r.class == classLeaseLost) {
		// The runner ended, and the handler with it or without it. That is not
		// the job's own doing the first time, and suspicious the next.
		d.died, d.bound, d.reason = true, p.MaxDeaths, reasonProcessDied
		deaths := job.deaths + 1
		if deaths >= p.MaxDeaths {
			d.state = Dead
			return d
		}
		d.alone = deaths+1 >= p.MaxDeaths
		if deaths > 1 {
			d.shortest, d.longest = retry.Range(deaths - 1)
			d.delay = retry.Delay(deaths - 1)
		}
	} else {
		d.spent = true
		if r.atMost > 0 {
			d.bound = min(d.bound, r.atMost)
		}
		if job.spent+1 >= d.bound {
			d.state, d.reason = Dead, reasonExhausted
			return d
		}
		asked := r.after
		if !r.until.IsZero() {
			asked = max(r.until.Sub(now), 0)
		}
		if asked >= 0 {
			d.reason, d.delay = reasonRetryAfter, min(asked, MaxRetryAfter)
			d.shortest, d.longest = d.delay, d.delay
		} else {
			d.shortest, d.longest = retry.Range(job.spent + 1)
			d.delay = retry.Delay(job.spent + 1)
		}
	}
	if retry.MaxElapsed > 0 && now.Add(d.delay).Sub(job.StartedAt) >= retry.MaxElapsed {
		d.state, d.reason = Dead, reasonExpired
	}
	return d
}

// admit says whether a job may begin an attempt at all: the last look before
// the claim, for what no attempt's end could decide (a runner without the
// kind's handler closed it, the policy has changed, the job lay too long). An
// empty state means yes.
func admit(job *Job, p Policy, now time.Time) (State, string) {
	retry, reason := p.retryFor(job), ""
	switch {
	case job.deaths >= p.MaxDeaths:
		reason = reasonProcessDied
	case job.spent >= retry.MaxAttempts:
		reason = reasonExhausted
	case retry.MaxElapsed > 0 && !job.StartedAt.IsZero() && now.Sub(job.StartedAt) >= retry.MaxElapsed:
		reason = reasonExpired
	}
	switch {
	case job.doubt && (p.OnUnknown == UnknownHold || p.OnUnknown == UnknownProbe && reason != ""):
		return Held, reasonUnknown
	case reason != "":
		return Dead, reason
	}
	return "", ""
}
