package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// This file is the application: what it does, and how its work is handled.
// verification.go has its tables and what becomes of a mail that was sent.

// Verification is the argument of a job: which event, and nothing that would
// have to be kept from whoever may read the job.
type Verification struct {
	Event string `json:"event"`
}

// SendVerification is the one kind of work here.
const SendVerification rota.Kind[Verification] = "verification.send"

const templateRevision = "verify-r7"

// setup is what a process of the application has to know.
type setup struct {
	Database string
	Provider string // address
	Secret   []byte // for hashes and tokens
	Shared   []byte // with the provider, which signs its receipts
	Speed    float64
}

type app struct {
	setup
	jobs     *rota.Scheduler
	provider client
	log      *slog.Logger

	// afterAcceptance is called at the worst moment: the provider has accepted
	// the mail, and nobody has written that down.
	afterAcceptance func()
}

// openApp opens the application; redact keeps texts of other people's making
// from telling what they should not.
func openApp(c setup, log io.Writer, redact func(string) string) (*app, error) {
	a := &app{setup: c, provider: client{url: c.Provider}, log: newLogger(log), afterAcceptance: func() {}}
	var err error
	a.jobs, err = rota.Open(c.Database, rota.Config{Redact: redact, Logger: a.log})
	if err != nil {
		return nil, err
	}
	if _, err := a.jobs.DB().Exec(appSchema); err != nil {
		return nil, errors.Join(fmt.Errorf("create the application's tables: %w", err), a.jobs.Close())
	}
	rota.Handle(a.jobs, SendVerification, a.send, rota.Policy{
		Timeout: 3 * time.Second, // of one attempt, and not scaled: a slow machine is no timeout
		Retry:   schedule(c.Speed),
		// After an outcome that nobody knows, the provider is asked whether it
		// has the mail; only if not is it sent.
		OnUnknown: rota.UnknownProbe,
		Probe:     a.probe,
	})
	return a, nil
}

func (a *app) close() error { return a.jobs.Close() }

// signUp stores the account, the verification and its job together: all three
// are there, or none is.
func (a *app) signUp(ctx context.Context, account, email string) error {
	event := "evt-" + strings.ToLower(rand.Text())[:12]
	hash := a.recipientHash(email)
	return a.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO accounts (id, email) VALUES ($1, $2)`, account, email); err != nil {
			return err
		}
		job, err := SendVerification.EnqueueTx(ctx, a.jobs, tx, Verification{event}, rota.EnqueueOptions{
			UniqueKey:      event,
			IdempotencyKey: event,
			Labels:         map[string]string{"account": account, "recipient": hash, "template": templateRevision},
		})
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `
			INSERT INTO verifications (event_id, account_id, recipient_hash, template, token_hash, state, job_id)
			VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			event, account, hash, templateRevision, tokenHash(a.token(event)), requested, job.ID)
		return err
	})
}

// send is the handler. That the mail is accepted is recorded in the transaction
// that ends the job, so the two never differ.
func (a *app) send(ctx context.Context, job *rota.Job, v Verification) error {
	var m mail
	var state string
	err := a.jobs.DB().QueryRowContext(ctx, `
		SELECT email, state FROM accounts JOIN verifications ON account_id = id WHERE event_id = $1`,
		v.Event).Scan(&m.To, &state)
	if err != nil {
		return fmt.Errorf("event %s: %w", v.Event, err)
	}
	if state != requested { // somebody replays the job; a failed event stays failed
		return rota.Permanent(fmt.Errorf("event %s is %s", v.Event, state))
	}
	m.Template, m.Link = templateRevision, "https://signup.example/verify/"+a.token(v.Event)
	id, err := a.provider.send(ctx, job.IdempotencyKey, m)
	if err != nil {
		return err
	}
	a.log.Info("accepted by the provider", "event", v.Event, "message", id)
	a.afterAcceptance()
	job.Note("message", id)
	return a.inTx(ctx, func(tx *sql.Tx) error {
		if err := accept(ctx, tx, v.Event, id, fmt.Sprintf("attempt %d", job.Attempt)); err != nil {
			return err
		}
		return job.CompleteTx(ctx, tx)
	})
}

// probe asks the provider whether it has the mail of an attempt that nobody
// knows the outcome of. If it has, what the handler could not record is
// recorded here. It may be asked again, so it must not mind that.
func (a *app) probe(ctx context.Context, job *rota.Job) (rota.Verdict, error) {
	event := job.IdempotencyKey
	id, err := a.provider.find(ctx, event)
	if err != nil {
		return "", err
	}
	if id == "" {
		return rota.NotHappened, nil
	}
	a.log.Info("found at the provider", "event", event, "message", id)
	job.Note("message", id)
	return rota.Happened, a.inTx(ctx, func(tx *sql.Tx) error {
		return accept(ctx, tx, event, id, fmt.Sprintf("probe of attempt %d", job.Attempt))
	})
}

func (a *app) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := a.jobs.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // nothing, after the commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// newLogger logs without times, so that a reader sees what is the same in two
// runs.
func newLogger(out io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		},
	}))
}
