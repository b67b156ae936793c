package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// check prints a line for each thing that must hold, and returns what does not.
func (r report) check(ctx context.Context, sheets []sheet) error {
	if len(sheets) != len(r.people) {
		return fmt.Errorf("%d events, want %d", len(sheets), len(r.people))
	}
	var wrong []error
	for _, c := range []struct {
		sentence string
		check    func(context.Context, []sheet) error
	}{
		{"every event ended as it should, after the attempts that it should take", r.checkEnds},
		{"what the crash left open was closed as unknown, and the probe settled it without a second mail", r.checkCrash},
		{"nobody was sent a mail twice, and accepted came before delivered and bounced", r.checkMails},
		{"every delay lay in the schedule's range", r.checkDelays},
		{"the link in each mail verifies its account, and a forged one none", r.checkLinks},
		{"no token and no address is in Rota's tables or in anything printed", r.checkSecrets},
	} {
		err := c.check(ctx, sheets)
		verdict := "ok    "
		if err != nil {
			verdict = "FAILED"
			wrong = append(wrong, fmt.Errorf("%s: %w", c.sentence, err))
		}
		fmt.Fprintf(r.record, "%s %s\n", verdict, c.sentence)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("not as it should be:\n%w", errors.Join(wrong...))
	}
	return nil
}

func (r report) checkEnds(ctx context.Context, sheets []sheet) error {
	var wrong []error
	for i, who := range r.people {
		s := sheets[i]
		job, err := r.app.job(ctx, s.event)
		if err != nil {
			return err
		}
		outcomes := strings.Join(who.outcomes, " ")
		if s.account != who.account || s.state != who.state || s.outcomes != outcomes || s.attempts != len(who.outcomes) || job.Reason != who.reason {
			wrong = append(wrong, fmt.Errorf("%s (%s): %s, job %s, %s; want %s, job %s, %s",
				s.account, who.story, s.state, job.Reason, s.outcomes, who.state, who.reason, outcomes))
		}
	}
	return errors.Join(wrong...)
}

func (r report) checkCrash(ctx context.Context, _ []sheet) error {
	if r.left.state != requested || r.left.job.State != rota.Running || !r.left.evidence[0].FinishedAt.IsZero() {
		return fmt.Errorf("the first process left %v", r.left)
	}
	evidence, err := r.app.jobs.Attempts(ctx, r.left.job.ID)
	if err != nil {
		return err
	}
	if len(evidence) != 2 || evidence[0].Outcome != rota.OutcomeUnknown || evidence[1].Class != "probe" ||
		evidence[0].Runner == evidence[1].Runner {
		return fmt.Errorf("evidence: %+v", evidence)
	}
	if n := r.provider.asked(r.left.event); n != 1 {
		return fmt.Errorf("the provider was asked to send %d times", n)
	}
	return nil
}

func (r report) checkMails(ctx context.Context, sheets []sheet) error {
	mails := make(map[string]int)
	for _, sent := range r.provider.mails() {
		mails[sent.To]++
	}
	var wrong []error
	for i, s := range sheets {
		moves, err := r.app.transitions(ctx, s.event)
		if err != nil {
			return err
		}
		var way []string
		for _, m := range moves {
			way = append(way, m.to)
		}
		want, mail := []string{accepted, s.state}, 1
		if s.state == failed {
			want, mail = []string{failed}, 0
		}
		if mails[r.people[i].email] != mail || !slices.Equal(way, want) {
			wrong = append(wrong, fmt.Errorf("%s: %d mails, by way of %v; want %d, %v", s.account, mails[r.people[i].email], way, mail, want))
		}
	}
	return errors.Join(wrong...)
}

func (r report) checkDelays(ctx context.Context, sheets []sheet) error {
	policy := schedule(r.app.Speed)
	var wrong []error
	for _, s := range sheets {
		job, err := r.app.job(ctx, s.event)
		if err != nil {
			return err
		}
		evidence, err := r.app.jobs.Attempts(ctx, job.ID)
		if err != nil {
			return err
		}
		for _, a := range evidence {
			if a.NextAt.IsZero() || a.Class == "process_died" { // ended, or tried again at once
				continue
			}
			delay, us := a.NextAt.Sub(a.FinishedAt), time.Microsecond // times are stored in microseconds
			if shortest, longest := policy.Range(a.Number); delay < shortest-us || delay > longest+us {
				wrong = append(wrong, fmt.Errorf("%s: %v after attempt %d, want %v to %v", s.account, delay, a.Number, shortest, longest))
			}
		}
	}
	return errors.Join(wrong...)
}

func (r report) checkLinks(ctx context.Context, sheets []sheet) error {
	var wrong []error
	for _, sent := range r.provider.mails() {
		_, token, _ := strings.Cut(sent.Link, "/verify/")
		account, err := r.app.verify(ctx, token)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(sheets, func(s sheet) bool { return s.event == sent.key })
		if i < 0 || sheets[i].account != account {
			wrong = append(wrong, fmt.Errorf("the link of event %s verifies account %q", sent.key, account))
		}
	}
	if account, err := r.app.verify(ctx, strings.Repeat("0", 64)); err != nil || account != "" {
		wrong = append(wrong, fmt.Errorf("a forged link verifies account %q, %v", account, err))
	}
	return errors.Join(wrong...)
}

// checkSecrets searches all of Rota's tables, and all that was printed and
// logged by both processes, for every address and every token.
func (r report) checkSecrets(ctx context.Context, sheets []sheet) error {
	tables, err := dumpRota(ctx, r.app.jobs.DB())
	if err != nil {
		return err
	}
	var wrong []error
	search := func(what, secret string) {
		for name, text := range map[string]string{"Rota's tables": tables, "what was printed": r.record.String()} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(secret)) {
				wrong = append(wrong, fmt.Errorf("%s is in %s", what, name))
			}
		}
	}
	for _, who := range r.people {
		name, _, _ := strings.Cut(who.email, "@")
		search("the address of "+who.account, name)
	}
	for _, s := range sheets {
		search("the token of "+s.account, r.app.token(s.event))
	}
	return errors.Join(wrong...)
}

// dumpRota is the text of every value in every table of Rota's.
func dumpRota(ctx context.Context, db *sql.DB) (string, error) {
	var names string
	err := db.QueryRowContext(ctx, `
		SELECT group_concat(name, ' ') FROM sqlite_schema WHERE type = 'table' AND name GLOB 'rota_*'`).Scan(&names)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range strings.Fields(names) {
		if err := dumpTable(ctx, db, name, &text); err != nil {
			return "", err
		}
	}
	return text.String(), nil
}

func dumpTable(ctx context.Context, db *sql.DB, name string, into *strings.Builder) error {
	rows, err := db.QueryContext(ctx, "SELECT * FROM "+name) // a name from the schema
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	values, places := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		places[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(places...); err != nil {
			return err
		}
		for i, v := range values {
			fmt.Fprintf(into, "%s.%s: %s\n", name, columns[i], v.String)
		}
	}
	return rows.Err()
}
