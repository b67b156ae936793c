package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// remains is what the first process left in the database.
type remains struct {
	event, state string
	job          *rota.Job
	evidence     []rota.Attempt
}

func (r remains) String() string {
	open := "ended"
	if r.evidence[0].FinishedAt.IsZero() {
		open = "begun, and never ended"
	}
	return fmt.Sprintf("event %s %s, its job %s, attempt 1 %s", r.event, r.state, r.job.State, open)
}

// leftBehind reads what the only sign-up of the first process came to.
func (a *app) leftBehind(ctx context.Context) (r remains, err error) {
	for r.job, err = range a.jobs.Jobs(ctx, rota.Filter{Kind: string(SendVerification), Limit: 1}) {
		if err != nil {
			return r, err
		}
	}
	if r.job == nil {
		return r, errors.New("the first process left no job")
	}
	r.event = r.job.IdempotencyKey
	err = a.jobs.DB().QueryRowContext(ctx, `SELECT state FROM verifications WHERE event_id = $1`, r.event).Scan(&r.state)
	if err != nil {
		return r, err
	}
	r.evidence, err = a.jobs.Attempts(ctx, r.job.ID)
	if err == nil && len(r.evidence) == 0 {
		err = errors.New("the first process left no attempt")
	}
	return r, err
}

// sheet is a row of the evidence view.
type sheet struct {
	event, account, recipient, template, state string
	attempts                                   int
	outcomes                                   string
}

func (a *app) sheets(ctx context.Context) ([]sheet, error) {
	rows, err := a.jobs.DB().QueryContext(ctx, `SELECT * FROM evidence ORDER BY account_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []sheet
	for rows.Next() {
		var s sheet
		if err := rows.Scan(&s.event, &s.account, &s.recipient, &s.template, &s.state, &s.attempts, &s.outcomes); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// transition is a move of an event, as it stands on record.
type transition struct {
	at              time.Time
	from, to, cause string
}

func (a *app) transitions(ctx context.Context, event string) ([]transition, error) {
	rows, err := a.jobs.DB().QueryContext(ctx, `
		SELECT at, from_state, to_state, cause FROM transitions WHERE event_id = $1 ORDER BY seq`, event)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []transition
	for rows.Next() {
		var at int64
		var t transition
		if err := rows.Scan(&at, &t.from, &t.to, &t.cause); err != nil {
			return nil, err
		}
		t.at = time.UnixMicro(at)
		all = append(all, t)
	}
	return all, rows.Err()
}

// job finds the job of an event.
func (a *app) job(ctx context.Context, event string) (*rota.Job, error) {
	var id string
	err := a.jobs.DB().QueryRowContext(ctx, `SELECT job_id FROM verifications WHERE event_id = $1`, event).Scan(&id)
	if err != nil {
		return nil, err
	}
	return a.jobs.Job(ctx, id)
}

// report shows what both lives came to.
type report struct {
	app      *app
	provider *provider
	people   []person
	left     remains
	record   *transcript
}

// print shows it all, and returns what is not as it should be.
func (r report) print(ctx context.Context) error {
	sheets, err := r.app.sheets(ctx)
	if err != nil {
		return err
	}
	for _, show := range []func(context.Context, []sheet) error{r.printSheets, r.printCrash, r.printDead, r.printNumbers} {
		if err := show(ctx, sheets); err != nil {
			return err
		}
		fmt.Fprintln(r.record)
	}
	return r.check(ctx, sheets)
}

func (r report) printSheets(_ context.Context, sheets []sheet) error {
	fmt.Fprintf(r.record, "Evidence:\n  %-7s  %-16s  %-13s  %-9s  %-9s  %s\n", "account", "event", "recipient", "template", "state", "attempts")
	for _, s := range sheets {
		fmt.Fprintf(r.record, "  %-7s  %s  %.12s…  %-9s  %-9s  %d: %s\n",
			s.account, s.event, s.recipient, s.template, s.state, s.attempts, shorten(s.outcomes))
	}
	return nil
}

// shorten writes an outcome that repeats once, with its number.
func shorten(outcomes string) string {
	var parts []string
	words := strings.Fields(outcomes)
	for len(words) > 0 {
		n := slices.IndexFunc(words, func(w string) bool { return w != words[0] })
		if n < 0 {
			n = len(words)
		}
		part := words[0]
		if n > 1 {
			part += fmt.Sprintf(" ×%d", n)
		}
		parts, words = append(parts, part), words[n:]
	}
	return strings.Join(parts, ", ")
}

func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// printCrash tells the story of the event that the crash met, from both records.
func (r report) printCrash(ctx context.Context, _ []sheet) error {
	evidence, err := r.app.jobs.Attempts(ctx, r.left.job.ID)
	if err != nil {
		return err
	}
	moves, err := r.app.transitions(ctx, r.left.event)
	if err != nil {
		return err
	}
	type entry struct {
		at   time.Time
		text string
	}
	var story []entry
	for _, a := range evidence {
		story = append(story, entry{a.ClaimedAt, fmt.Sprintf("attempt %d begins, with token %d", a.Number, a.Token)})
		end := fmt.Sprintf("attempt %d is closed: %s (%s)", a.Number, a.Outcome, a.Class)
		if a.Error != "" {
			end += ": " + a.Error
		}
		story = append(story, entry{a.FinishedAt, end})
	}
	for _, m := range moves {
		story = append(story, entry{m.at, fmt.Sprintf("%s → %s (%s)", m.from, m.to, m.cause)})
	}
	slices.SortStableFunc(story, func(a, b entry) int { return a.at.Compare(b.at) })
	fmt.Fprintln(r.record, "The event that the crash met:")
	for _, e := range story {
		fmt.Fprintf(r.record, "  %6.3fs  %s\n", e.at.Sub(r.left.job.CreatedAt).Seconds(), e.text)
	}
	return nil
}

// printDead is the dead-letter view: what a person has to look at.
func (r report) printDead(ctx context.Context, _ []sheet) error {
	fmt.Fprintln(r.record, "Dead letters:")
	for job, err := range r.app.jobs.Jobs(ctx, rota.Filter{Kind: string(SendVerification), State: rota.Dead}) {
		if err != nil {
			return err
		}
		fmt.Fprintf(r.record, "  %-7s  %s  %.12s…  %-9s  after %s: %s\n", job.Labels["account"], job.IdempotencyKey,
			job.Labels["recipient"], job.Reason, counted(job.Attempt, "attempt"), strings.Replace(job.Error, r.provider.url, "", 1))
	}
	return nil
}

// printNumbers shows what a dashboard would.
func (r report) printNumbers(ctx context.Context, _ []sheet) error {
	stats, err := r.app.jobs.Stats(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.record, "Numbers: %d jobs succeeded, %d are dead (%d exhausted), %d held. Attempts:\n",
		stats.States[rota.Succeeded], stats.States[rota.Dead], stats.Exhausted, stats.Held)
	for _, c := range stats.Attempts {
		fmt.Fprintf(r.record, "  %-9s  %-12s  %d\n", c.Outcome, c.Class, c.Count)
	}
	return nil
}
