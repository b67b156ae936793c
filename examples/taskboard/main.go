// Command taskboard invites people to a board by mail, over SMTP. Its mail
// server misbehaves on purpose, so that every way in which a delivery can end
// is seen, and what Rota then decides:
//
//	go run ./examples/taskboard             # 120 times as fast: about 12 seconds
//	go run ./examples/taskboard -speed 1    # the real schedule: about 22 minutes
//
// It prints a line for each attempt as it ends, and at last what the server's
// mailboxes hold. It fails if anything is not as it should be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/mail"
	"net/textproto"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

func main() {
	speed := flag.Float64("speed", 120, "how many times as fast as the real schedule, which is 1")
	flag.Parse()
	if !(*speed >= 1 && *speed <= 10_000) {
		fmt.Fprintln(os.Stderr, "taskboard: -speed is a number from 1 to 10000")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := runOnTCP(ctx, os.Stdout, *speed)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "taskboard:", err)
		os.Exit(1)
	}
}

// Invitation is what a job has to know.
type Invitation struct {
	To    string `json:"to"`
	Board string `json:"board"`
}

// SendInvitation is the one kind of work here.
const SendInvitation rota.Kind[Invitation] = "invitation.send"

// schedule is when a failed invitation is tried again: 10, 20, 40, … 640 s after
// a failure, which is 5 s × 2^(attempts made), at most an hour, and a whole 0 to
// 9 s more, so that invitations that failed together do not return together.
// After 8 attempts it ends.
func schedule(speed float64) rota.Retry {
	retry := rota.Retry{
		Base:        10 * time.Second,
		Factor:      2,
		Cap:         time.Hour,
		Jitter:      rota.Plus(9 * time.Second),
		MaxAttempts: 8,
	}
	if speed != 1 {
		retry.Base = faster(retry.Base, speed)
		retry.Cap = faster(retry.Cap, speed)
		// Plus counts in whole seconds, which can't be made shorter, and
		// unshortened they would drown the rest.
		retry.Jitter = rota.NoJitter()
	}
	return retry
}

func faster(d time.Duration, speed float64) time.Duration {
	return time.Duration(float64(d) / speed)
}

// handler sends one invitation, and tells Rota what an error means.
func handler(m mailer) func(context.Context, *rota.Job, Invitation) error {
	return func(ctx context.Context, job *rota.Job, inv Invitation) error {
		to, err := mail.ParseAddress(inv.To)
		if err != nil {
			return rota.Permanent(err) // no later attempt will read it better
		}
		msg := message{
			// The key is the same for every attempt, so the server can tell a
			// second delivery of the mail from a second mail.
			id:      job.IdempotencyKey + "@taskboard.example",
			from:    "boards@taskboard.example",
			to:      to.Address,
			subject: "You are invited to " + inv.Board,
			body:    "Your colleagues would like to see you on the board.",
		}
		reply, err := m.send(ctx, msg)
		job.Note("message_id", msg.id)
		job.Note("reply", reply)
		return meaning(err)
	}
}

// meaning classifies what send returned.
func meaning(err error) error {
	var refused *textproto.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Code >= 500:
		return rota.Permanent(err) // "no, and do not ask again"
	case errors.As(err, &refused):
		return err // 4xx: "not now"
	case errors.Is(err, errNotSent):
		return err // the server never had the whole message
	default:
		// It had, and no answer came. The mail is on its way, or it is not,
		// and only the server knows (RFC 1047). The policy's OnUnknown decides.
		return rota.Unknown(err)
	}
}

// network is where the mail server listens, and the way to it.
type network struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
}

func runOnTCP(ctx context.Context, out io.Writer, speed float64) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}
	_, err = run(ctx, out, network{listener, dial}, guests, speed)
	return err
}

// run invites the guests, prints what happens, and checks it.
func run(ctx context.Context, out io.Writer, post network, guests []guest, speed float64) (_ []invited, err error) {
	server := serveSMTP(post.listener, plan(guests))
	defer server.close()
	dir, err := os.MkdirTemp("", "taskboard-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	s, err := rota.Open(filepath.Join(dir, "taskboard.db"), rota.Config{
		PollInterval: -1,                            // no other process writes to this file
		Logger:       slog.New(slog.DiscardHandler), // what it would say is printed from the evidence
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	// The conversation has a deadline of its own, shorter than the attempt's, so
	// that send finds out by itself how far it got. It is never so short that a
	// slow machine is taken for a silent server.
	patience := max(faster(20*time.Second, speed), 2*time.Second)
	rota.Handle(s, SendInvitation, handler(mailer{post.dial, patience}), rota.Policy{
		Timeout:   3 * patience,
		Retry:     schedule(speed),
		OnUnknown: rota.UnknownRetry, // safe, as the Message-ID keeps the mail from being delivered twice
	})

	var ids []string
	for _, g := range guests {
		job, err := SendInvitation.Enqueue(ctx, s, Invitation{To: g.address(), Board: "Spring plan"}, rota.EnqueueOptions{
			UniqueKey: "invitation:" + g.name, // whoever asks twice invites once
			Labels:    map[string]string{"guest": g.name},
		})
		if err != nil {
			return nil, err
		}
		ids = append(ids, job.ID)
	}
	introduce(out, guests, speed)

	running, stop := context.WithCancelCause(ctx)
	ran := make(chan error, 1)
	go func() {
		err := s.Run(running)
		stop(err)
		ran <- err
	}()
	err = follow(running, out, s, ids, speed)
	stop(nil)
	if err = errors.Join(err, <-ran); err != nil {
		return nil, err
	}
	all, err := gather(ctx, s, server, guests, ids)
	if err != nil {
		return nil, err
	}
	return all, report(out, all, schedule(speed))
}
