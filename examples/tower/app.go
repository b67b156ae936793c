package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// This file is the company's program: its tables, its three kinds of work, and
// the function that does each.

// The application's own tables, in the file that Rota's stand in. ledger and
// cleanups are journals without any key that would refuse a second entry: what
// happened twice stands there twice.
const appSchema = `
	CREATE TABLE IF NOT EXISTS invoices (
		id      INTEGER PRIMARY KEY,
		account TEXT    NOT NULL,  -- what the bank charges
		cents   INTEGER NOT NULL,
		due_on  TEXT    NOT NULL,  -- date
		sent_at INTEGER,           -- null: not yet
		charge  TEXT               -- the bank's id of the payment
	) STRICT;
	CREATE TABLE IF NOT EXISTS sessions (
		id         INTEGER PRIMARY KEY,
		expires_at INTEGER NOT NULL -- seconds since the epoch
	) STRICT;
	CREATE TABLE IF NOT EXISTS ledger   (invoice INTEGER, cents INTEGER, charge TEXT, job TEXT) STRICT;
	CREATE TABLE IF NOT EXISTS cleanups (deleted INTEGER, job TEXT) STRICT;`

// sqlToCharge says what is not yet done: the due invoices that have not been
// sent. It is state and not a window of time, so it finds the same work however
// many nights were missed. An invoice whose charge is dead waits for a person: a
// new job would have a new idempotency key, and the bank would take it for a new
// payment. One whose charge is under way is left out by Sweep itself.
const sqlToCharge = `
	SELECT id, json_object('id', id) FROM invoices
	WHERE sent_at IS NULL AND due_on <= date('now') AND id NOT IN (
		SELECT CAST(unique_key AS INTEGER) FROM rota_jobs WHERE kind = $1 AND state = 'dead')
	ORDER BY id`

// invoiceRef is the argument of a charge: which invoice. What the invoice says
// is read when the job runs, so that a correction counts.
type invoiceRef struct {
	ID int64 `json:"id"`
}

// The three kinds of work.
const (
	nightlyInvoices rota.Kind[struct{}]   = "nightly.invoices"
	nightlySessions rota.Kind[struct{}]   = "nightly.sessions"
	chargeInvoice   rota.Kind[invoiceRef] = "invoice.charge"
)

// retryPolicy is exponential backoff with full jitter: before attempt n+1 a
// random delay in [0, d), d = 250 ms, 500 ms, 1 s, 2 s, at most 5 attempts. In
// production Base would be 1 s or more; here a night has to pass in seconds.
var retryPolicy = rota.Retry{
	Base:        250 * time.Millisecond,
	Factor:      2,
	Cap:         8 * time.Second,
	Jitter:      rota.Full(),
	MaxAttempts: 5,
}

// bankPatience is how long the program waits for the bank's answer. After that
// it can't know whether the money has moved.
const bankPatience = 2 * time.Second

// app is one instance of the program.
type app struct {
	s       *rota.Scheduler
	bankURL string
	client  http.Client
}

// openApp opens the company's one file and makes sure that the tables are there.
func openApp(ctx context.Context, path, name, bankURL string, log io.Writer) (*app, error) {
	s, err := rota.Open(path, rota.Config{Name: name, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		return nil, err
	}
	if _, err := s.DB().ExecContext(ctx, appSchema); err != nil {
		return nil, errors.Join(fmt.Errorf("create the application's tables: %w", err), s.Close())
	}
	return &app{s: s, bankURL: bankURL, client: http.Client{Timeout: bankPatience}}, nil
}

// handle says which function does which work.
func (a *app) handle() {
	nightly := rota.Policy{Timeout: time.Minute, Retry: retryPolicy}
	rota.Handle(a.s, nightlyInvoices, a.sweepInvoices, nightly)
	rota.Handle(a.s, nightlySessions, a.deleteSessions, nightly)
	rota.Handle(a.s, chargeInvoice, a.charge, rota.Policy{Timeout: 30 * time.Second, Retry: retryPolicy, MaxRunning: 8})
}

// declare makes the two schedules part of the program. Whoever becomes the
// runner writes them down.
func (a *app) declare(at nightTime) error {
	return errors.Join(
		nightlyInvoices.Declare(a.s, at.schedule("nightly-invoices"), struct{}{}),
		nightlySessions.Declare(a.s, at.schedule("nightly-sessions"), struct{}{}),
	)
}

// nightTime is when a night's maintenance begins.
type nightTime struct {
	Spec    string
	Zone    string
	Seconds bool
}

func (at nightTime) schedule(name string) rota.Schedule {
	return rota.Schedule{Name: name, Spec: at.Spec, Zone: at.Zone, Seconds: at.Seconds}
}

// sweepInvoices makes one job for each invoice that is due and not yet sent.
// Were it interrupted and done again, it would find only what is still missing.
func (a *app) sweepInvoices(ctx context.Context, job *rota.Job, _ struct{}) error {
	n, err := chargeInvoice.Sweep(ctx, a.s, sqlToCharge, string(chargeInvoice))
	job.Note("enqueued", n)
	return err
}

// deleteSessions deletes what has expired and records its own success in one
// transaction: both happen together, exactly once, or not at all.
func (a *app) deleteSessions(ctx context.Context, job *rota.Job, _ struct{}) error {
	return a.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM sessions WHERE expires_at <= unixepoch()`)
		if err != nil {
			return err
		}
		deleted, err := res.RowsAffected()
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO cleanups VALUES ($1, $2)`, deleted, job.ID); err != nil {
			return err
		}
		job.Note("deleted", deleted)
		return job.CompleteTx(ctx, tx)
	})
}

// charge lets the bank move the money, then marks the invoice as sent. The
// second half is exactly once by CompleteTx. The first half lies outside the
// database, and is once because each attempt shows the bank the same key.
func (a *app) charge(ctx context.Context, job *rota.Job, ref invoiceRef) error {
	var p payment
	err := a.s.DB().QueryRowContext(ctx, `SELECT id, account, cents FROM invoices WHERE id = $1`, ref.ID).
		Scan(&p.Invoice, &p.Account, &p.Cents)
	if err != nil {
		return fmt.Errorf("read invoice %d: %w", ref.ID, err)
	}
	receipt, err := a.pay(ctx, p, job.IdempotencyKey)
	if err != nil {
		return err
	}
	job.Note("charge", receipt.Charge)
	return a.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE invoices SET sent_at = unixepoch(), charge = $2 WHERE id = $1`, p.Invoice, receipt.Charge)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO ledger VALUES ($1, $2, $3, $4)`, p.Invoice, p.Cents, receipt.Charge, job.ID)
		if err != nil {
			return err
		}
		return job.CompleteTx(ctx, tx)
	})
}

// pay is an ordinary HTTP call. HTTPError turns the answer's status into what is
// to happen next; a timeout is an unknown outcome by itself.
func (a *app) pay(ctx context.Context, p payment, key string) (receipt, error) {
	body, err := json.Marshal(p)
	if err != nil {
		return receipt{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.bankURL, bytes.NewReader(body))
	if err != nil {
		return receipt{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := a.client.Do(req)
	if err != nil {
		return receipt{}, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return receipt{}, err
	}
	if err := rota.HTTPError(resp); err != nil {
		return receipt{}, fmt.Errorf("%w: %s", err, bytes.TrimSpace(answer))
	}
	var r receipt
	if err := json.Unmarshal(answer, &r); err != nil {
		return receipt{}, rota.Unknown(fmt.Errorf("the bank's receipt: %w", err))
	}
	return r, nil
}

// inTx runs f in a transaction on the company's file.
func (a *app) inTx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := a.s.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// What the file holds before the first night.
const (
	sentBefore      = 60  // invoices 1 to 60
	toBeSent        = 120 // invoices 61 to 180
	notYetDue       = 20  // invoices 181 to 200
	expiredSessions = 170
	liveSessions    = 330
)

// seed fills the application's tables.
func (a *app) seed(ctx context.Context, withoutAccount []int64) error {
	return a.inTx(ctx, func(tx *sql.Tx) error {
		for id := int64(1); id <= sentBefore+toBeSent+notYetDue; id++ {
			cents, days := 1000+id*7%500*10, -id%5
			var sentAt, charge any
			switch {
			case id <= sentBefore:
				sentAt, charge = time.Now().Add(-30*24*time.Hour).Unix(), fmt.Sprintf("ch_earlier_%d", id)
			case id > sentBefore+toBeSent:
				days = 14
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES ($1, $2, $3, date('now', $4 || ' days'), $5, $6)`,
				id, fmt.Sprintf("ACC-%04d", id), cents, days, sentAt, charge)
			if err != nil {
				return err
			}
		}
		for _, id := range withoutAccount {
			if _, err := tx.ExecContext(ctx, sqlSetAccount, id, ""); err != nil {
				return err
			}
		}
		now := time.Now()
		for i := range expiredSessions + liveSessions {
			expires := now.Add(24 * time.Hour)
			if i < expiredSessions {
				expires = now.Add(-time.Duration(i+1) * time.Minute)
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO sessions (expires_at) VALUES ($1)`, expires.Unix()); err != nil {
				return err
			}
		}
		return nil
	})
}

const sqlSetAccount = `UPDATE invoices SET account = $2 WHERE id = $1`

// setAccount is what a person does who mends an invoice.
func (a *app) setAccount(ctx context.Context, invoice int64, account string) error {
	_, err := a.s.DB().ExecContext(ctx, sqlSetAccount, invoice, account)
	return err
}

// invoiceOf is the invoice that a charge's job is about.
func invoiceOf(job *rota.Job) (int64, error) {
	var ref invoiceRef
	err := json.Unmarshal(job.Args, &ref)
	return ref.ID, err
}
