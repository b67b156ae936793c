package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// claims are what the report says for certain. Each is asked for what speaks
// against it; silence is proof.
var claims = []struct {
	says   string
	faults func(*facts) faults
}{
	{"each due invoice is sent, with one entry in the ledger, or its charge is dead and it has none", (*facts).invoiceFaults},
	{"the bank charged each sent invoice exactly once, at its amount, and no other", (*facts).chargeFaults},
	{"422 was final at the first attempt, 500 at the third, and neither cost the customer anything", (*facts).deadFaults},
	{"each of the other refusals was mended by retries", (*facts).mendedFaults},
	{"a 503 with Retry-After: 1 was tried again after one second, not before", (*facts).retryAfterFaults},
	{"a payment whose answer was lost is unknown, and its retry was answered from the bank's book", (*facts).lostAnswerFaults},
	{"the expired sessions were deleted once, in one transaction with their job's end, and no other", (*facts).sessionFaults},
	{"each schedule made up for all the missed nights in one late run", (*facts).nightFaults},
	{"all attempts under one token come from one runner, and the two instances had one token each", (*facts).runnerFaults},
	{"the standby took over long before the dead runner's lease had run out", (*facts).takeoverFaults},
	{"what the dead runner had in hand is unknown, was tried again by the standby, and was not charged twice", (*facts).killedFaults},
	{"attempts are numbered without a gap, closed, within their bound, and no delay left its range", (*facts).attemptFaults},
	{"the replay succeeded with the original's key, and left the original and its evidence as they were", (*facts).replayFaults},
	{"the clean stop gave the lease back, and no work is left", (*facts).endFaults},
	{"the next release moved each schedule to its one next firing, at 3 in Berlin", (*facts).releaseFaults},
}

// faults are what speaks against a claim.
type faults []string

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// planned are the invoices that the plan gives this fault.
func planned(what fault) []int64 {
	var all []int64
	for _, id := range slices.Sorted(maps.Keys(faultPlan)) {
		if faultPlan[id] == what {
			all = append(all, id)
		}
	}
	return all
}

// firstJob is the job that the night's sweep made for the invoice.
func (f *facts) firstJob(invoice int64) *rota.Job {
	if jobs := f.jobsOf(invoice); len(jobs) > 0 {
		return jobs[0]
	}
	return &rota.Job{State: "missing"}
}

// stayDead are the invoices that the night could not mend, and of which nobody
// has mended one since.
func (f *facts) stayDead() []int64 {
	replayed, err := invoiceOf(f.dead)
	return slices.DeleteFunc(append(planned(broken), withoutAccount...), func(id int64) bool {
		return err == nil && id == replayed
	})
}

func (f *facts) invoiceFaults() (bad faults) {
	entries := map[int64][]entry{}
	for _, e := range f.ledger {
		entries[e.Invoice] = append(entries[e.Invoice], e)
	}
	if len(f.invoices) != sentBefore+toBeSent+notYetDue || len(f.due()) != toBeSent {
		bad.add("there are %d invoices, %d of them due", len(f.invoices), len(f.due()))
	}
	for _, i := range f.invoices {
		due := i.ID > sentBefore && i.ID <= sentBefore+toBeSent
		jobs, es := f.jobsOf(i.ID), entries[i.ID]
		switch {
		case !due:
			if len(jobs) > 0 || len(es) > 0 || i.Sent != (i.ID <= sentBefore) {
				bad.add("invoice %d was none of the night's business", i.ID)
			}
		case len(jobs) == 0:
			bad.add("invoice %d has no job", i.ID)
		case slices.Contains(f.stayDead(), i.ID):
			if job := jobs[len(jobs)-1]; i.Sent || len(es) > 0 || job.State != rota.Dead {
				bad.add("invoice %d can't have been sent; its job is %s", i.ID, job.State)
			}
		default:
			job := jobs[len(jobs)-1]
			if !i.Sent || job.State != rota.Succeeded {
				bad.add("invoice %d: sent %t, its job is %s", i.ID, i.Sent, job.State)
			}
			if want := (entry{i.ID, i.Cents, i.Charge, job.ID}); len(es) != 1 || es[0] != want {
				bad.add("invoice %d: the ledger says %v, not once %v", i.ID, es, want)
			}
		}
	}
	return bad
}

func (f *facts) chargeFaults() (bad faults) {
	charged := 0
	for _, i := range f.due() {
		book := f.chargesOf(i.ID)
		charged += len(book)
		if !i.Sent {
			if len(book) > 0 {
				bad.add("invoice %d was not sent, but charged %d times", i.ID, len(book))
			}
			continue
		}
		if len(book) != 1 || book[0].Cents != i.Cents || book[0].ID != i.Charge {
			bad.add("invoice %d over %s: the book says %v", i.ID, euros(i.Cents), book)
		}
	}
	if charged != len(f.book) {
		bad.add("%d charges are for invoices that were not due", len(f.book)-charged)
	}
	return bad
}

func (f *facts) deadFaults() (bad faults) {
	for _, id := range withoutAccount {
		job := f.firstJob(id)
		if n := f.trials(job)["http_422"]; job.State != rota.Dead || job.Reason != "permanent" || n != 1 {
			bad.add("invoice %d: %s (%s) after %s", id, job.State, job.Reason, outcomes(f.attempts[job.ID]))
		}
	}
	for _, id := range planned(broken) {
		job := f.firstJob(id)
		// An attempt that the death of the process cut short does not count.
		if n := len(f.attempts[job.ID]) - f.trials(job)["process_died"]; job.State != rota.Dead || job.Reason != "exhausted" || n != 3 {
			bad.add("invoice %d: %s (%s) after %s", id, job.State, job.Reason, outcomes(f.attempts[job.ID]))
		}
	}
	dead := 0
	for _, job := range f.jobs {
		if job.State == rota.Dead {
			dead++
		}
	}
	if want := len(withoutAccount) + len(planned(broken)); dead != want {
		bad.add("%d jobs are dead, not %d", dead, want)
	}
	for _, id := range f.stayDead() {
		if n := len(f.chargesOf(id)); n != 0 {
			bad.add("invoice %d was charged %d times", id, n)
		}
	}
	return bad
}

func (f *facts) mendedFaults() (bad faults) {
	for what, planned := range map[fault]struct {
		invoices []int64
		class    string
		n        int
	}{
		unavailable: {planned(unavailable), "http_503", 1},
		throttled:   {planned(throttled), "http_429", 2},
		crashes:     {planned(crashes), "http_500", 1},
	} {
		for _, id := range planned.invoices {
			job := f.firstJob(id)
			trials := f.trials(job)
			// A refusal may have been lost with the runner, or to a timeout of
			// a busy machine; then it is an unknown outcome.
			lost := trials["process_died"] + trials["timeout"]
			if n := trials[planned.class]; n > planned.n || n+lost < planned.n || job.State != rota.Succeeded {
				bad.add("invoice %d met %q: %s after %s", id, what, job.State, outcomes(f.attempts[job.ID]))
			}
		}
	}
	return bad
}

func (f *facts) retryAfterFaults() (bad faults) {
	asked := 0
	for _, id := range planned(unavailable) {
		all := f.attempts[f.firstJob(id).ID]
		for n, a := range all {
			if a.Class != "http_503" {
				continue
			}
			asked++
			if delay := a.NextAt.Sub(a.FinishedAt); a.Reason != "retry_after" || delay != time.Second {
				bad.add("invoice %d: due again after %v, because of %s", id, delay, a.Reason)
			}
			if n+1 >= len(all) || all[n+1].ClaimedAt.Before(a.NextAt) {
				bad.add("invoice %d was not tried again after %s", id, clock(a.NextAt))
			}
		}
	}
	if asked == 0 {
		bad.add("nobody was asked to wait")
	}
	return bad
}

func (f *facts) lostAnswerFaults() (bad faults) {
	for _, id := range planned(silent) {
		job := f.firstJob(id)
		all, book := f.attempts[job.ID], f.chargesOf(id)
		lost := slices.ContainsFunc(all, func(a rota.Attempt) bool {
			return a.Outcome == rota.OutcomeUnknown && a.Class == "timeout"
		})
		if !lost || job.State != rota.Succeeded {
			bad.add("invoice %d: %s after %s", id, job.State, outcomes(all))
		}
		if len(book) != 1 || book[0].Asked < 2 || book[0].Key != job.IdempotencyKey {
			bad.add("invoice %d: the book says %v", id, book)
		}
	}
	return bad
}

func outcomes(all []rota.Attempt) string {
	var words []string
	for _, a := range all {
		words = append(words, fmt.Sprintf("%s (%s)", a.Outcome, a.Class))
	}
	return strings.Join(words, ", ")
}

func (f *facts) sessionFaults() (bad faults) {
	if f.sessions != liveSessions || f.sessionsExpired != 0 {
		bad.add("%d sessions are left, %d of them expired", f.sessions, f.sessionsExpired)
	}
	if len(f.cleanups) != 1 || f.cleanups[0].Deleted != expiredSessions {
		bad.add("the cleanups are %v", f.cleanups)
		return bad
	}
	job := f.job(f.cleanups[0].Job)
	if job.Schedule != "nightly-sessions" || job.State != rota.Succeeded {
		bad.add("the cleanup was done by job %s of schedule %q, which is %s", job.ID, job.Schedule, job.State)
	}
	return bad
}

func (f *facts) nightFaults() (bad faults) {
	last := f.nights[len(f.nights)-1]
	if len(f.declared) != 2 {
		bad.add("%d schedules were declared", len(f.declared))
	}
	for _, head := range f.declared {
		// The firings after the one that was pending when everybody left.
		left := slices.IndexFunc(f.nights, head.ScheduledFor.Equal)
		coalesced := len(f.nights) - 1 - left
		if left < 0 || coalesced < 1 {
			bad.add("schedule %s was due at %s, so no two nights were missed", head.Schedule, head.ScheduledFor)
			continue
		}
		var ran []*rota.Job
		for _, job := range f.jobs {
			if job.Schedule == head.Schedule && job.Attempt > 0 {
				ran = append(ran, job)
			}
		}
		if len(ran) != 1 || ran[0].ID != head.ID || ran[0].State != rota.Succeeded || !ran[0].StartedAt.After(last) {
			bad.add("schedule %s ran %d times", head.Schedule, len(ran))
			continue
		}
		var note struct {
			Coalesced int       `json:"coalesced"`
			To        time.Time `json:"coalesced_to"`
		}
		for _, a := range f.attempts[head.ID][:1] { // one, since it ran
			if err := json.Unmarshal(a.Note, &note); err != nil || note.Coalesced != coalesced || !note.To.Equal(last) {
				bad.add("schedule %s: its evidence says %s (%v)", head.Schedule, a.Note, err)
			}
		}
	}
	return bad
}

func (f *facts) runnerFaults() (bad faults) {
	terms := f.terms()
	for _, t := range terms {
		if len(t.runners) != 1 {
			bad.add("token %d has the runners %v", t.token, t.runners)
		}
	}
	if len(terms) != 3 || terms[1].token != f.runner.Token || terms[2].token != f.standby.Token {
		bad.add("there were %d terms, not three: the first start's, the runner's, the standby's", len(terms))
		return bad
	}
	if terms[1].runners[0] != f.runner.Holder || terms[2].runners[0] != f.standby.Holder || f.runner.Holder == f.standby.Holder {
		bad.add("the attempts name %v and %v, the lease named %s and %s", terms[1].runners, terms[2].runners, f.runner.Holder, f.standby.Holder)
	}
	if terms[2].first.Before(terms[1].last) {
		bad.add("the standby claimed at %s, the runner still at %s", clock(terms[2].first), clock(terms[1].last))
	}
	return bad
}

func (f *facts) takeoverFaults() (bad faults) {
	// It takes some 50 ms. The limit allows for a busy machine; one who has to
	// wait for the lease to run out needs two thirds of its TTL at the least.
	if limit := f.runner.TTL / 2; f.takeover() < 0 || f.takeover() > limit {
		bad.add("it took %v; the lease lasts %v", f.takeover(), f.runner.TTL)
	}
	return bad
}

func (f *facts) killedFaults() (bad faults) {
	died := 0
	for _, all := range f.attempts {
		for n, a := range all {
			if a.Class != "process_died" {
				continue
			}
			died++
			if a.Outcome != rota.OutcomeUnknown || a.Token != f.runner.Token || n+1 >= len(all) || all[n+1].Token != f.standby.Token {
				bad.add("job %s: its attempts came to %s", a.JobID, outcomes(all))
			}
		}
	}
	if died == 0 {
		bad.add("no attempt was under way when the runner died")
	}
	for _, id := range f.held {
		job := f.firstJob(id)
		all, book := f.attempts[job.ID], f.chargesOf(id)
		unknown := slices.ContainsFunc(all, func(a rota.Attempt) bool {
			return a.Outcome == rota.OutcomeUnknown && a.Runner == f.runner.Holder
		})
		if !unknown || job.State != rota.Succeeded {
			bad.add("invoice %d, charged and not answered when the runner died: %s after %s", id, job.State, outcomes(all))
		}
		if len(book) != 1 || book[0].Asked < 2 {
			bad.add("invoice %d: the book says %v", id, book)
		}
	}
	return bad
}

func (f *facts) attemptFaults() (bad faults) {
	counted := 0
	for _, job := range f.jobs {
		all := f.attempts[job.ID]
		counted += len(all)
		if len(all) != job.Attempt {
			bad.add("job %s says that it had %d attempts; there are %d", job.ID, job.Attempt, len(all))
		}
		spent := 0
		for n, a := range all {
			if a.Class != "process_died" {
				spent++
			}
			if a.Number != n+1 || a.Outcome == "" || a.FinishedAt.Before(a.ClaimedAt) {
				bad.add("job %s: attempt %d, in place %d, is %q", job.ID, a.Number, n+1, a.Outcome)
			}
			if a.NextAt.IsZero() {
				continue
			}
			// The database keeps microseconds.
			delay := a.NextAt.Sub(a.FinishedAt)
			if delay < a.DelayMin-time.Microsecond || delay > a.DelayMax+time.Microsecond {
				bad.add("job %s: the delay after attempt %d is %v, not %v to %v", job.ID, a.Number, delay, a.DelayMin, a.DelayMax)
			}
			if n+1 >= len(all) || all[n+1].ClaimedAt.Before(a.NextAt) {
				bad.add("job %s: no attempt after %s", job.ID, a.NextAt)
			}
		}
		if spent > retryPolicy.MaxAttempts {
			bad.add("job %s had %d attempts that count; %d are allowed", job.ID, spent, retryPolicy.MaxAttempts)
		}
	}
	for _, c := range f.stats.Attempts {
		counted -= c.Count
	}
	if counted != 0 {
		bad.add("the statistics count %d attempts less than there are", counted)
	}
	return bad
}

func (f *facts) replayFaults() (bad faults) {
	replay, original := f.job(f.replay.ID), f.job(f.dead.ID)
	if f.replay.Duplicate || replay.ReplayOf != f.dead.ID || replay.State != rota.Succeeded || replay.IdempotencyKey != f.dead.IdempotencyKey {
		bad.add("job %s replays %q and is %s", replay.ID, replay.ReplayOf, replay.State)
	}
	if !reflect.DeepEqual(original, f.dead) {
		bad.add("the original was %+v and is %+v", f.dead, original)
	}
	if !reflect.DeepEqual(f.attempts[f.dead.ID], f.evidence) {
		bad.add("the original's evidence has changed")
	}
	if !slices.ContainsFunc(f.actions, func(a rota.Action) bool {
		return a.Action == "replay" && a.JobID == f.dead.ID && a.Actor == "anna" && a.Reason != ""
	}) {
		bad.add("nobody is on record for the replay")
	}
	return bad
}

func (f *facts) endFaults() (bad faults) {
	if f.last.Holder != "" || f.last.Token != f.standby.Token {
		bad.add("after the stop the lease's holder was %q, its token %d", f.last.Holder, f.last.Token)
	}
	for _, job := range f.jobs {
		if !job.State.Terminal() && job.Spec == "" {
			bad.add("job %s is %s", job.ID, job.State)
		}
	}
	return bad
}

func (f *facts) releaseFaults() (bad faults) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		bad.add("%v", err)
		return bad
	}
	for _, declared := range f.declared {
		var heads []*rota.Job
		for _, job := range f.next {
			if job.Schedule == declared.Schedule {
				heads = append(heads, job)
			}
		}
		if len(heads) != 1 || heads[0].State != rota.Pending || heads[0].ScheduledFor.In(berlin).Format("15:04:05") != "03:00:00" {
			bad.add("schedule %s has %d pending occurrences at the hour", declared.Schedule, len(heads))
		}
	}
	if len(f.next) != len(f.declared) {
		bad.add("there are %d schedules", len(f.next))
	}
	return bad
}
