package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"time"
)

// message is a mail.
type message struct {
	id, from, to, subject, body string
}

func (m message) String() string {
	return fmt.Sprintf("Message-ID: <%s>\nFrom: %s\nTo: %s\nSubject: %s\n\n%s\n", m.id, m.from, m.to, m.subject, m.body)
}

// mailer speaks as much SMTP (RFC 5321) as an invitation needs.
type mailer struct {
	dial    func(context.Context) (net.Conn, error)
	timeout time.Duration // for a whole conversation
}

// errNotSent: the conversation ended before the end of the message was sent, so
// nothing can have been delivered.
var errNotSent = errors.New("not sent")

// send hands the message to the server, and returns its answer. An error is the
// server's refusal (*textproto.Error), or matches errNotSent; any other says
// that the server may have taken the message.
func (m mailer) send(ctx context.Context, msg message) (reply string, err error) {
	conn, err := m.dial(ctx)
	if err != nil {
		return "", notSent(err)
	}
	text := textproto.NewConn(conn)
	defer text.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(m.timeout)); err != nil {
		return "", notSent(err)
	}
	for _, step := range []struct {
		say  string
		want int
	}{
		{"", 220}, // the server greets
		{"EHLO taskboard.example", 250},
		{"MAIL FROM:<" + msg.from + ">", 250},
		{"RCPT TO:<" + msg.to + ">", 250},
		{"DATA", 354},
	} {
		if step.say != "" {
			err = text.PrintfLine("%s", step.say)
		}
		if err == nil {
			_, _, err = text.ReadResponse(step.want)
		}
		if err != nil {
			return "", notSent(err)
		}
	}
	body := text.DotWriter()
	_, err = io.WriteString(body, msg.String())
	if err = errors.Join(err, body.Close()); err == nil {
		_, reply, err = text.ReadResponse(250)
	}
	if err != nil {
		return "", fmt.Errorf("after the message: %w", err)
	}
	_ = text.PrintfLine("QUIT") // a courtesy: the server has answered for the message
	return reply, nil
}

// notSent keeps a refusal as it is. Of any other error it keeps the text only:
// Rota takes a timeout or a cut connection that it finds in an error for an
// unknown outcome, and this outcome is known.
func notSent(err error) error {
	var refused *textproto.Error
	if errors.As(err, &refused) {
		return refused
	}
	return fmt.Errorf("%w: %v", errNotSent, err)
}
