package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// This file says what happened: it reads everything when everything is over,
// and prints it. Whether it is what should have happened is in claims.go.

// facts are all that the report and its claims are made of: the tables, the
// bank's book, and the little that only an eyewitness knows.
type facts struct {
	seen
	invoices        []invoice
	ledger          []entry
	cleanups        []cleanup
	sessions        int // that are left
	sessionsExpired int // of those
	jobs            []*rota.Job
	attempts        map[string][]rota.Attempt // by job
	actions         []rota.Action
	stats           rota.Stats
	book            []charge
	answers         map[string]int // of the bank
}

// invoice, entry and cleanup are rows of the application's tables.
type invoice struct {
	ID, Cents int64
	Sent      bool
	Charge    string
}

type entry struct {
	Invoice, Cents int64
	Charge, Job    string
}

type cleanup struct {
	Deleted int
	Job     string
}

func gather(ctx context.Context, s *rota.Scheduler, b *bank, saw seen) (*facts, error) {
	f := &facts{seen: saw, attempts: make(map[string][]rota.Attempt)}
	f.book, f.answers = b.read()
	var err error
	f.invoices, err = query(ctx, s, `SELECT id, cents, sent_at IS NOT NULL, coalesce(charge, '') FROM invoices ORDER BY id`,
		func(i *invoice) []any { return []any{&i.ID, &i.Cents, &i.Sent, &i.Charge} })
	if err != nil {
		return nil, err
	}
	f.ledger, err = query(ctx, s, `SELECT invoice, cents, charge, job FROM ledger ORDER BY rowid`,
		func(e *entry) []any { return []any{&e.Invoice, &e.Cents, &e.Charge, &e.Job} })
	if err != nil {
		return nil, err
	}
	f.cleanups, err = query(ctx, s, `SELECT deleted, job FROM cleanups ORDER BY rowid`,
		func(c *cleanup) []any { return []any{&c.Deleted, &c.Job} })
	if err != nil {
		return nil, err
	}
	err = s.DB().QueryRowContext(ctx, `SELECT count(*), count(CASE WHEN expires_at <= unixepoch() THEN 1 END) FROM sessions`).
		Scan(&f.sessions, &f.sessionsExpired)
	if err != nil {
		return nil, err
	}
	for job, err := range s.Jobs(ctx, rota.Filter{}) {
		if err != nil {
			return nil, err
		}
		f.jobs = append(f.jobs, job)
		if f.attempts[job.ID], err = s.Attempts(ctx, job.ID); err != nil {
			return nil, err
		}
	}
	if f.actions, err = s.Actions(ctx, ""); err != nil {
		return nil, err
	}
	f.stats, err = s.Stats(ctx)
	return f, err
}

// query reads the rows of a query on the application's tables.
func query[T any](ctx context.Context, s *rota.Scheduler, text string, columns func(*T) []any) ([]T, error) {
	rows, err := s.DB().QueryContext(ctx, text)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var row T
		if err := rows.Scan(columns(&row)...); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

// due are the invoices that the night was about.
func (f *facts) due() (due []invoice) {
	for _, i := range f.invoices {
		if i.ID > sentBefore && i.ID <= sentBefore+toBeSent {
			due = append(due, i)
		}
	}
	return due
}

// jobsOf are the jobs that charged the invoice, in the order of their arrival:
// one, and perhaps its replay. The sweep made the invoice's id their unique key.
func (f *facts) jobsOf(invoice int64) (jobs []*rota.Job) {
	key := strconv.FormatInt(invoice, 10)
	for _, job := range f.jobs {
		if job.Kind == string(chargeInvoice) && job.UniqueKey == key {
			jobs = append(jobs, job)
		}
	}
	return jobs
}

// chargesOf are the bank's entries for the invoice.
func (f *facts) chargesOf(invoice int64) (charges []charge) {
	for _, c := range f.book {
		if c.Invoice == invoice {
			charges = append(charges, c)
		}
	}
	return charges
}

// job is the job of that id.
func (f *facts) job(id string) *rota.Job {
	for _, job := range f.jobs {
		if job.ID == id {
			return job
		}
	}
	return &rota.Job{ID: id, State: "missing"}
}

// trials counts the attempts of a job by class.
func (f *facts) trials(job *rota.Job) map[string]int {
	n := make(map[string]int)
	for _, a := range f.attempts[job.ID] {
		n[a.Class]++
	}
	return n
}

// term is what one runner did under one token.
type term struct {
	token       int64
	runners     []string
	attempts    int
	first, last time.Time
	end         string
}

// terms are the lease's history, as the attempts tell it.
func (f *facts) terms() []term {
	byToken := map[int64]*term{}
	for _, all := range f.attempts {
		for _, a := range all {
			t := byToken[a.Token]
			if t == nil {
				t = &term{token: a.Token, first: a.ClaimedAt}
				byToken[a.Token] = t
			}
			t.attempts++
			if !slices.Contains(t.runners, a.Runner) {
				t.runners = append(t.runners, a.Runner)
			}
			if a.ClaimedAt.Before(t.first) {
				t.first = a.ClaimedAt
			}
			if a.ClaimedAt.After(t.last) {
				t.last = a.ClaimedAt
			}
		}
	}
	all := []term{{token: f.first.Token, runners: []string{"first-start"}, first: f.first.AcquiredAt, end: "wrote down the schedules, released"}}
	for _, token := range slices.Sorted(maps.Keys(byToken)) {
		t := byToken[token]
		switch token {
		case f.runner.Token:
			t.end = "killed"
		case f.standby.Token:
			t.end = fmt.Sprintf("took over %v after the kill, released", f.takeover().Round(time.Millisecond))
		}
		all = append(all, *t)
	}
	return all
}

// print writes the report.
func (f *facts) print(out io.Writer) {
	for _, part := range []struct {
		title string
		print func(io.Writer)
	}{
		{"Invoices by what came of them", f.printInvoices},
		{"What the bank answered, and what its book says", f.printBank},
		{"Attempts by outcome and class", f.printAttempts},
		{"Who was the runner", f.printTerms},
		{"The missed nights", f.printNights},
		{"A trail: 503, and Retry-After honoured", f.printRetryAfter},
		{"A trail: charged, but the answer was lost", f.printLostAnswer},
		{"A trail: charged, and then the runner was killed", f.printKilled},
		{"Dead letters", f.printDead},
		{"One of them replayed", f.printReplay},
		{"What comes next", f.printNext},
		{"Claims, checked against the tables and the bank's book", f.printClaims},
	} {
		fmt.Fprintf(out, "\n%s\n", part.title)
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		part.print(w)
		w.Flush() // out's errors are the terminal's own
	}
	fmt.Fprintln(out)
}

func row(w io.Writer, cells ...any) {
	fmt.Fprint(w, "  ")
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, cell)
	}
	fmt.Fprintln(w)
}

func (f *facts) printInvoices(w io.Writer) {
	type line struct {
		what                        string
		invoices, attempts, charges int
		cents                       int64
	}
	lines := map[string]*line{}
	for _, i := range f.invoices {
		what, attempts := "sent before; not touched", 0
		if i.ID > sentBefore+toBeSent {
			what = "not due yet; not touched"
		}
		for _, job := range f.jobsOf(i.ID) {
			trials := f.trials(job)
			delete(trials, "ok")
			what = string(job.State)
			if job.State == rota.Dead {
				what += ", " + job.Reason
			}
			if job.ReplayOf != "" {
				what += " by replay"
			}
			if len(trials) > 0 {
				what += " after " + strings.Join(slices.Sorted(maps.Keys(trials)), ", ")
			}
			attempts += len(f.attempts[job.ID])
		}
		l := lines[what]
		if l == nil {
			l = &line{what: what}
			lines[what] = l
		}
		l.invoices++
		l.attempts += attempts
		for _, c := range f.chargesOf(i.ID) {
			l.charges++
			l.cents += c.Cents
		}
	}
	sum := line{what: "all"}
	row(w, "", "invoices", "attempts", "charges", "amount")
	sorted := slices.SortedFunc(maps.Values(lines), func(a, b *line) int {
		return cmp.Or(cmp.Compare(b.invoices, a.invoices), cmp.Compare(a.what, b.what))
	})
	for _, l := range append(sorted, &sum) {
		row(w, l.what, l.invoices, l.attempts, l.charges, euros(l.cents))
		sum.invoices, sum.attempts, sum.charges, sum.cents = sum.invoices+l.invoices, sum.attempts+l.attempts, sum.charges+l.charges, sum.cents+l.cents
	}
}

func euros(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

func (f *facts) printBank(w io.Writer) {
	for _, answer := range slices.Sorted(maps.Keys(f.answers)) {
		row(w, answer, f.answers[answer])
	}
	charged, again := map[int64]bool{}, 0
	for _, c := range f.book {
		charged[c.Invoice] = true
		if c.Asked > 1 {
			again++
		}
	}
	sent := 0
	for _, i := range f.due() {
		if i.Sent {
			sent++
		}
	}
	row(w, fmt.Sprintf("%d charges for %d invoices; the application sent %d.", len(f.book), len(charged), sent))
	row(w, fmt.Sprintf("%d payments were asked for again after their charge; the idempotency key kept them from being made twice.", again))
}

func (f *facts) printAttempts(w io.Writer) {
	row(w, "outcome", "class", "attempts")
	for _, c := range f.stats.Attempts {
		row(w, c.Outcome, c.Class, c.Count)
	}
}

func (f *facts) printTerms(w io.Writer) {
	row(w, "token", "runner", "attempts", "from", "last claim", "")
	for _, t := range f.terms() {
		last := "-"
		if t.attempts > 0 {
			last = clock(t.last)
		}
		row(w, t.token, strings.Join(t.runners, ", "), t.attempts, clock(t.first), last, t.end)
	}
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

func (f *facts) printNights(w io.Writer) {
	row(w, "schedule", "meant for", "ran at", "state", "evidence")
	for _, job := range f.jobs {
		if job.Schedule == "" || job.Attempt == 0 {
			continue
		}
		for _, a := range f.attempts[job.ID] {
			row(w, job.Schedule, clock(job.ScheduledFor), clock(a.ClaimedAt), job.State, string(a.Note))
		}
	}
}

// printTrail writes the evidence of one job, attempt by attempt. Times count
// from the first claim.
func (f *facts) printTrail(w io.Writer, job *rota.Job) {
	row(w, fmt.Sprintf("job %s, %s %s", job.ID, job.Kind, job.Args))
	row(w, "#", "claimed", "ended", "runner", "outcome", "class", "decision")
	all := f.attempts[job.ID]
	since := func(t time.Time) string { return fmt.Sprintf("+%.3fs", t.Sub(all[0].ClaimedAt).Seconds()) }
	for _, a := range all {
		runner, _, _ := strings.Cut(a.Runner, ":")
		decision := string(a.Decision)
		switch {
		case a.NextAt.IsZero():
		case a.Bound == 0 || a.DelayMin == a.DelayMax:
			decision += fmt.Sprintf(" (%s): due again at %s", a.Reason, since(a.NextAt))
		default:
			decision += fmt.Sprintf(" (%s): due again at %s, drawn from %v to %v", a.Reason, since(a.NextAt),
				a.DelayMin, a.DelayMax.Round(time.Millisecond))
		}
		row(w, a.Number, since(a.ClaimedAt), since(a.FinishedAt), fmt.Sprintf("%s (token %d)", runner, a.Token), a.Outcome, a.Class, decision)
	}
	for _, a := range all {
		if a.Error != "" {
			row(w, fmt.Sprintf("#%d: %s", a.Number, a.Error))
		}
	}
}

func (f *facts) printTrailOf(w io.Writer, invoice int64) {
	for _, job := range f.jobsOf(invoice) {
		f.printTrail(w, job)
	}
	for _, c := range f.chargesOf(invoice) {
		row(w, fmt.Sprintf("the bank's book: %s over %s, asked for %s with the key %s", c.ID, euros(c.Cents), times(c.Asked), c.Key))
	}
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// printRetryAfter takes the last of them: the runner's death does not cross it.
func (f *facts) printRetryAfter(w io.Writer) {
	all := planned(unavailable)
	f.printTrailOf(w, all[len(all)-1])
}

func (f *facts) printLostAnswer(w io.Writer) { f.printTrailOf(w, planned(silent)[0]) }

func (f *facts) printKilled(w io.Writer) { f.printTrailOf(w, f.held[0]) }

func (f *facts) printDead(w io.Writer) {
	row(w, "invoice", "attempts", "reason", "error")
	for _, job := range f.jobs {
		if job.State == rota.Dead {
			invoice, _ := invoiceOf(job) // 0 would be seen
			row(w, invoice, job.Attempt, job.Reason, job.Error)
		}
	}
}

func (f *facts) printReplay(w io.Writer) {
	for _, a := range f.actions {
		if a.Action == "replay" {
			row(w, fmt.Sprintf("%s: %s replayed job %s: %q", clock(a.At), a.Actor, a.JobID, a.Reason))
		}
	}
	f.printTrail(w, f.job(f.replay.ID))
}

func (f *facts) printNext(w io.Writer) {
	row(w, "schedule", "", "next")
	for _, job := range f.next {
		spec, err := rota.ParseSpec(job.Spec, rota.SpecOptions{Zone: job.Zone, Name: job.Schedule})
		if err != nil {
			row(w, job.Schedule, err)
			continue
		}
		next, _ := spec.Next(job.ScheduledFor.Add(-time.Second)) // the same instant, in its own zone
		row(w, job.Schedule, spec.Describe(), next.Format(time.RFC1123Z))
	}
}

func (f *facts) printClaims(w io.Writer) {
	for _, c := range claims {
		faults := c.faults(f)
		mark := "holds"
		if len(faults) > 0 {
			mark = "BROKEN"
		}
		row(w, mark, c.says)
		for _, fault := range faults {
			row(w, "", "- "+fault)
		}
	}
}

// verdict is the last line.
func (f *facts) verdict() (string, bool) {
	var broken []string
	for _, c := range claims {
		if len(c.faults(f)) > 0 {
			broken = append(broken, c.says)
		}
	}
	if len(broken) > 0 {
		return fmt.Sprintf("FAILED: %d of %d claims do not hold: %s", len(broken), len(claims), strings.Join(broken, "; ")), false
	}
	sent, dead := 0, 0
	for _, i := range f.due() {
		if i.Sent {
			sent++
		} else {
			dead++
		}
	}
	return fmt.Sprintf("OK: %d of %d due invoices sent and charged exactly once, %d wait for a person; all %d claims hold",
		sent, sent+dead, dead, len(claims)), true
}
