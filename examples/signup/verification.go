package main

import (
	"context"
	"crypto/hmac"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// This file is the state machine of a verification, in the application's own
// tables, which stand beside Rota's in one file.

// States of a verification, and the one state that each is reached from. That
// the provider has accepted a mail does not say that it was delivered.
//
//	requested ─► accepted ─► delivered
//	    └─► failed   └─► bounced
const (
	requested = "requested"
	accepted  = "accepted"
	failed    = "failed"
	delivered = "delivered"
	bounced   = "bounced"
)

var reachedFrom = map[string]string{
	accepted: requested, failed: requested, delivered: accepted, bounced: accepted,
}

const appSchema = `
	CREATE TABLE IF NOT EXISTS accounts (
		id          TEXT PRIMARY KEY,
		email       TEXT NOT NULL,           -- the only place for an address
		verified_at INTEGER
	) STRICT;
	CREATE TABLE IF NOT EXISTS verifications (
		event_id       TEXT PRIMARY KEY,     -- the idempotency key, too: of the job, and at the provider
		account_id     TEXT NOT NULL REFERENCES accounts (id),
		recipient_hash TEXT NOT NULL,        -- HMAC-SHA256 of the address
		template       TEXT NOT NULL,
		token_hash     TEXT NOT NULL UNIQUE, -- SHA-256 of the token, which stands nowhere
		state          TEXT NOT NULL,
		provider_id    TEXT UNIQUE,
		job_id         TEXT NOT NULL
	) STRICT;
	CREATE TABLE IF NOT EXISTS transitions (
		seq        INTEGER PRIMARY KEY,
		event_id   TEXT    NOT NULL REFERENCES verifications (event_id),
		at         INTEGER NOT NULL,         -- microseconds since the epoch
		from_state TEXT    NOT NULL,
		to_state   TEXT    NOT NULL,
		cause      TEXT    NOT NULL,
		UNIQUE (event_id, to_state)
	) STRICT;
	CREATE TRIGGER IF NOT EXISTS transitions_not_edited BEFORE UPDATE ON transitions
	BEGIN SELECT RAISE(ABORT, 'a transition is never edited'); END;
	CREATE TRIGGER IF NOT EXISTS transitions_not_removed BEFORE DELETE ON transitions
	BEGIN SELECT RAISE(ABORT, 'a transition is never removed'); END;

	-- The evidence on one sheet: what the application knows, and what Rota does.
	CREATE VIEW IF NOT EXISTS evidence AS
		SELECT v.event_id, v.account_id, v.recipient_hash, v.template, v.state,
			(SELECT count(*) FROM rota_attempts WHERE job_id = v.job_id) AS attempts,
			(SELECT coalesce(group_concat(outcome || '/' || class, ' ' ORDER BY number), '')
				FROM rota_attempts WHERE job_id = v.job_id) AS outcomes
		FROM verifications v;`

// accept records that the provider has taken the mail.
func accept(ctx context.Context, tx *sql.Tx, event, messageID, cause string) error {
	if _, err := tx.ExecContext(ctx, `UPDATE verifications SET provider_id = $2 WHERE event_id = $1`, event, messageID); err != nil {
		return err
	}
	return move(ctx, tx, event, accepted, cause)
}

// errMove: the state machine has no such way.
var errMove = errors.New("not allowed in this state")

// move takes an event to its next state, and keeps when and why. A move that
// was made before is no error and leaves no second trace.
func move(ctx context.Context, tx *sql.Tx, event, to, cause string) error {
	res, err := tx.ExecContext(ctx, `UPDATE verifications SET state = $3 WHERE event_id = $1 AND state = $2`,
		event, reachedFrom[to], to)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		var made int
		q := tx.QueryRowContext(ctx, `SELECT count(*) FROM transitions WHERE event_id = $1 AND to_state = $2`, event, to)
		if err := errors.Join(err, q.Scan(&made)); err != nil || made > 0 {
			return err
		}
		return fmt.Errorf("event %s to %s: %w", event, to, errMove)
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO transitions (event_id, at, from_state, to_state, cause) VALUES ($1, $2, $3, $4, $5)`,
		event, time.Now().UnixMicro(), reachedFrom[to], to, cause)
	return err
}

// settle moves the events whose jobs are dead to failed, and returns how many
// events are open. It works from state: it may be called at any time, by any
// process, and costs no more for all the dead letters that there ever were.
func (a *app) settle(ctx context.Context) (open int, err error) {
	dead, err := a.deadLetters(ctx)
	if err != nil {
		return 0, err
	}
	for event, reason := range dead {
		err := a.inTx(ctx, func(tx *sql.Tx) error {
			return move(ctx, tx, event, failed, "job is dead: "+reason)
		})
		if err != nil {
			return 0, err
		}
	}
	err = a.jobs.DB().QueryRowContext(ctx, `
		SELECT count(*) FROM verifications WHERE state IN ('requested', 'accepted')`).Scan(&open)
	return open, err
}

// deadLetters are the requested events whose jobs are dead, and why.
func (a *app) deadLetters(ctx context.Context) (map[string]string, error) {
	rows, err := a.jobs.DB().QueryContext(ctx, `
		SELECT event_id, reason FROM verifications v JOIN rota_jobs j ON j.id = v.job_id
		WHERE v.state = 'requested' AND j.state = 'dead'`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	dead := make(map[string]string)
	for rows.Next() {
		var event, reason string
		if err := rows.Scan(&event, &reason); err != nil {
			return nil, err
		}
		dead[event] = reason
	}
	return dead, rows.Err()
}

// receipt is what the provider tells about a mail that it accepted earlier.
type receipt struct {
	Message string `json:"message"`
	Status  string `json:"status"` // delivered or bounced
}

// serveReceipts listens to the provider, until stop is called.
func (a *app) serveReceipts() (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(a.receive), ReadHeaderTimeout: 5 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // it always fails, at the latest by Close
	return "http://" + l.Addr().String(), func() {
		server.Close()
		serving.Wait()
	}, nil
}

func (a *app) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
	var got receipt
	switch {
	case err != nil:
		http.Error(w, "can't be read", http.StatusBadRequest)
		return
	case !hmac.Equal([]byte(r.Header.Get(signatureHeader)), []byte(sign(a.Shared, "receipt", string(body)))):
		http.Error(w, "not signed by the provider", http.StatusUnauthorized)
		return
	case json.Unmarshal(body, &got) != nil || got.Status != delivered && got.Status != bounced:
		http.Error(w, "no receipt", http.StatusBadRequest)
		return
	}
	var event string
	err = a.inTx(r.Context(), func(tx *sql.Tx) error {
		err := tx.QueryRowContext(r.Context(), `SELECT event_id FROM verifications WHERE provider_id = $1`, got.Message).Scan(&event)
		if err != nil {
			return err
		}
		return move(r.Context(), tx, event, got.Status, "receipt for "+got.Message)
	})
	switch {
	case err == nil:
	case errors.Is(err, sql.ErrNoRows):
		// A receipt may overtake the record of the acceptance, most of all
		// after a crash. The provider will come again.
		http.Error(w, "not known yet", http.StatusNotFound)
	case errors.Is(err, errMove):
		http.Error(w, "another receipt came before", http.StatusConflict)
	default:
		a.log.Error("a receipt could not be recorded", "message", got.Message, "error", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

// verify is what the link in the mail leads to: it marks the token's account as
// verified, and tells which it is; "" for a token that nobody was sent.
func (a *app) verify(ctx context.Context, token string) (account string, err error) {
	err = a.jobs.DB().QueryRowContext(ctx, `
		UPDATE accounts SET verified_at = coalesce(verified_at, $2)
		WHERE id = (SELECT account_id FROM verifications WHERE token_hash = $1) RETURNING id`,
		tokenHash(token), time.Now().UnixMicro()).Scan(&account)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return account, err
}
