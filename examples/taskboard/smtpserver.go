package main

import (
	"bufio"
	"io"
	"net"
	"net/textproto"
	"strings"
	"sync"
)

// treatment is what the server does with one attempt to deliver to somebody.
type treatment int

const (
	accept        treatment = iota
	refuseForNow            // 451, at the recipient's name
	refuseForGood           // 550, likewise
	refuseFull              // 452, when it has seen the message
	stallEarly              // falls silent at the recipient's name
	stallLate               // takes the message, loses it and falls silent
	dropAnswer              // delivers the message, and hangs up without a word
)

// server is a mail server that has a plan for everybody. It knows a message
// that it has delivered already by the Message-ID, as servers with duplicate
// suppression do (RFC 7352), and does not deliver it again.
type server struct {
	listener net.Listener
	plan     map[string][]treatment
	atWork   sync.WaitGroup

	mu         sync.Mutex // guards all below
	closed     bool
	conns      map[net.Conn]struct{}
	tries      map[string]int      // by recipient
	mailboxes  map[string][]string // Message-IDs by recipient
	duplicates map[string]int      // by recipient
}

func serveSMTP(l net.Listener, plan map[string][]treatment) *server {
	s := &server{
		listener: l, plan: plan,
		conns: make(map[net.Conn]struct{}), tries: make(map[string]int),
		mailboxes: make(map[string][]string), duplicates: make(map[string]int),
	}
	s.atWork.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil || !s.admit(conn) {
				return
			}
			s.atWork.Go(func() {
				defer s.dismiss(conn)
				s.converse(textproto.NewReader(bufio.NewReader(conn)), textproto.NewWriter(bufio.NewWriter(conn)))
			})
		}
	})
	return s
}

// close ends all conversations and waits until they have.
func (s *server) close() {
	s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.atWork.Wait()
}

func (s *server) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

func (s *server) dismiss(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	conn.Close()
}

// converse is one conversation. It returns when the server hangs up, or the
// client has.
func (s *server) converse(in *textproto.Reader, out *textproto.Writer) {
	var to string
	var now treatment
	say := func(line string) bool { return out.PrintfLine("%s", line) == nil }
	if !say("220 mail.guests.example ready") {
		return
	}
	for {
		line, err := in.ReadLine()
		if err != nil {
			return
		}
		verb, rest, _ := strings.Cut(line, " ")
		answer := "250 2.0.0 fine"
		switch strings.ToUpper(verb) {
		case "EHLO", "HELO", "MAIL", "NOOP":
		case "RCPT":
			to = strings.TrimSuffix(strings.TrimPrefix(rest, "TO:<"), ">")
			switch now = s.next(to); now {
			case refuseForNow:
				answer = "451 4.7.1 greylisted, come back later"
			case refuseForGood:
				answer = "550 5.1.1 no such mailbox"
			case stallEarly:
				untilHungUp(in)
				return
			}
		case "DATA":
			if !say("354 go ahead") {
				return
			}
			header, err := textproto.NewReader(bufio.NewReader(in.DotReader())).ReadMIMEHeader()
			if err != nil {
				return
			}
			switch now {
			case refuseFull:
				answer = "452 4.2.2 mailbox full"
			case stallLate:
				untilHungUp(in)
				return
			case dropAnswer:
				s.deliver(to, header.Get("Message-ID"))
				return
			default:
				answer = s.deliver(to, header.Get("Message-ID"))
			}
		case "QUIT":
			say("221 2.0.0 goodbye")
			return
		default:
			answer = "502 5.5.1 unknown command"
		}
		if !say(answer) {
			return
		}
	}
}

func untilHungUp(in *textproto.Reader) { _, _ = io.Copy(io.Discard, in.R) }

// next is the treatment of the next attempt.
func (s *server) next(to string) treatment {
	s.mu.Lock()
	defer s.mu.Unlock()
	plan := s.plan[to]
	if len(plan) == 0 {
		return refuseForGood
	}
	n := min(s.tries[to], len(plan)-1)
	s.tries[to]++
	return plan[n]
}

// deliver puts the message into the mailbox, unless it is there.
func (s *server) deliver(to, id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.mailboxes[to] {
		if known == id {
			s.duplicates[to]++
			return "250 2.0.0 I have this message already, and deliver it once"
		}
	}
	s.mailboxes[to] = append(s.mailboxes[to], id)
	return "250 2.0.0 delivered"
}

// mailbox tells how many messages were delivered to somebody, and how many
// more came that had been.
func (s *server) mailbox(to string) (delivered, duplicates int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mailboxes[to]), s.duplicates[to]
}
