package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
)

// This file is the bank: an HTTP endpoint with a mind of its own, and a book of
// what it has really charged.

// payment is a request to the bank; receipt is its answer.
type payment struct {
	Invoice int64  `json:"invoice"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

type receipt struct {
	Charge string `json:"charge"`
}

// fault is what the bank does to a payment besides charging it.
type fault string

const (
	unavailable fault = "503 with Retry-After, once"
	throttled   fault = "429, twice"
	crashes     fault = "500, once"
	broken      fault = "500, always"
	silent      fault = "charged, no answer, once"
)

// faultPlan says which invoices meet which fault. The payments without an
// account are refused with 422 by the bank's own rules.
var faultPlan = map[int64]fault{
	63: unavailable, 70: unavailable, 95: unavailable, 130: unavailable,
	65: throttled, 72: throttled, 101: throttled, 150: throttled,
	66: crashes, 88: crashes, 140: crashes,
	68:  broken,
	135: silent, 171: silent,
}

var withoutAccount = []int64{74, 93, 160}

// charge is one entry of the bank's book: money moved.
type charge struct {
	payment
	ID    string
	Key   string // the idempotency key that it was asked with
	Asked int    // how often it was asked with that key
}

// bank is the payment endpoint.
type bank struct {
	url    string
	server *http.Server
	served chan error // the end of Serve

	mu       sync.Mutex // guards all below
	book     []*charge
	failed   map[int64]int  // refusals so far, by invoice
	answers  map[string]int // by what was answered
	holdFrom int            // from this many charges on, answers are withheld; 0: never
	held     map[int64]bool // invoices that are charged and whose answers are being withheld
	isHeld   chan struct{}  // one token: held has grown
	released chan struct{}  // closed when answers are withheld no longer
}

// openBank listens on a free port of this machine. From holdFrom charges on it
// withholds its answers, until release: the way to catch a runner in mid-work.
func openBank(holdFrom int) (*bank, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the bank: %w", err)
	}
	b := &bank{
		url: fmt.Sprintf("http://%s/payments", l.Addr()), served: make(chan error, 1),
		failed: make(map[int64]int), answers: make(map[string]int),
		holdFrom: holdFrom, held: make(map[int64]bool),
		isHeld: make(chan struct{}, 1), released: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", b.pay)
	b.server = &http.Server{Handler: mux}
	go func() { b.served <- b.server.Serve(l) }()
	return b, nil
}

func (b *bank) close() error {
	err := b.server.Close()
	if served := <-b.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// pay answers one request.
func (b *bank) pay(w http.ResponseWriter, r *http.Request) {
	var p payment
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&p); err != nil {
		http.Error(w, "unreadable payment", http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		http.Error(w, "a payment needs an Idempotency-Key", http.StatusBadRequest)
		return
	}
	reply := b.decide(p, key)
	if reply.withhold {
		if !b.waitToAnswer(r.Context(), p.Invoice, reply.forever) {
			return // nobody listens any more
		}
	}
	if reply.status != http.StatusOK {
		if reply.retryAfter != "" {
			w.Header().Set("Retry-After", reply.retryAfter)
		}
		http.Error(w, reply.text, reply.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(receipt{Charge: reply.charge}) // a client that has left is no fault of the bank's
}

// reply is what the bank has decided to say.
type reply struct {
	status     int
	text       string
	retryAfter string
	charge     string
	withhold   bool // do not say it before release
	forever    bool // nor after it
}

// decide charges or refuses, and writes the book. A key that is in the book is
// answered from the book: that is what keeps a payment from being made twice.
func (b *bank) decide(p payment, key string) reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.IndexFunc(b.book, func(c *charge) bool { return c.Key == key }); i >= 0 {
		b.book[i].Asked++
		b.answers["200 from the book"]++
		return reply{status: http.StatusOK, charge: b.book[i].ID}
	}
	if p.Account == "" {
		return b.refuse(p, reply{status: http.StatusUnprocessableEntity, text: "the customer has no account"})
	}
	plan := faultPlan[p.Invoice]
	switch before := b.failed[p.Invoice]; {
	case plan == unavailable && before < 1:
		return b.refuse(p, reply{status: http.StatusServiceUnavailable, text: "maintenance", retryAfter: "1"})
	case plan == throttled && before < 2:
		return b.refuse(p, reply{status: http.StatusTooManyRequests, text: "slow down"})
	case plan == crashes && before < 1, plan == broken:
		return b.refuse(p, reply{status: http.StatusInternalServerError, text: "something went wrong"})
	}
	c := &charge{payment: p, ID: fmt.Sprintf("ch_%04d", len(b.book)+1), Key: key, Asked: 1}
	b.book = append(b.book, c)
	answer := reply{status: http.StatusOK, charge: c.ID}
	switch {
	case plan == silent:
		answer.withhold, answer.forever = true, true
		b.answers["charged, no answer"]++
	case b.holdFrom > 0 && len(b.book) >= b.holdFrom:
		answer.withhold = true
		b.answers["charged, answer withheld"]++
	default:
		b.answers["200 charged"]++
	}
	return answer
}

func (b *bank) refuse(p payment, r reply) reply {
	b.failed[p.Invoice]++
	b.answers[fmt.Sprint(r.status)]++
	return r
}

// waitToAnswer waits until the answer may be given. It returns false when the
// client has gone.
func (b *bank) waitToAnswer(ctx context.Context, invoice int64, forever bool) bool {
	released := b.released
	if forever {
		released = nil
	} else {
		b.setHeld(invoice, true)
		defer b.setHeld(invoice, false)
	}
	select {
	case <-released:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *bank) setHeld(invoice int64, held bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !held {
		delete(b.held, invoice)
		return
	}
	b.held[invoice] = true
	select {
	case b.isHeld <- struct{}{}:
	default:
	}
}

// waitHeld waits until answers to n payments are being withheld, and returns
// their invoices.
func (b *bank) waitHeld(ctx context.Context, n int) ([]int64, error) {
	for {
		select {
		case <-b.isHeld:
		case <-ctx.Done():
			return nil, fmt.Errorf("waited in vain until the bank withholds %d answers: %w", n, context.Cause(ctx))
		}
		b.mu.Lock()
		var invoices []int64
		for invoice := range b.held {
			invoices = append(invoices, invoice)
		}
		b.mu.Unlock()
		if len(invoices) >= n {
			slices.Sort(invoices)
			return invoices, nil
		}
	}
}

// release ends the withholding of answers.
func (b *bank) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holdFrom = 0
	close(b.released)
}

// read gives a copy of the book, and how often the bank answered what.
func (b *bank) read() ([]charge, map[string]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	book := make([]charge, len(b.book))
	for i, c := range b.book {
		book[i] = *c
	}
	return book, maps.Clone(b.answers)
}
