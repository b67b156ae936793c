package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// answer is how the provider treats one request.
type answer int

const (
	takeIt        answer = iota // 202, and the mail is sent
	unavailable                 // 503
	inAnHour                    // 503 with Retry-After
	reject                      // 422, in words that tell too much
	forgetAndHang               // no answer, and no mail
	takeItAndHang               // no answer, but the mail is sent
)

// provider is a company somewhere else, which sends mails and tells later what
// became of them. It has a plan for everybody.
type provider struct {
	url    string
	secret []byte
	people map[string]person // by address
	server *http.Server
	stop   context.CancelFunc
	atWork sync.WaitGroup

	mu       sync.Mutex // guards all below
	hook     string
	requests map[string]int // by key
	sent     []*sentMail
}

// sentMail is a mail that was accepted.
type sentMail struct {
	mail
	id, key      string
	acceptedAt   time.Time
	status       string
	acknowledged bool
}

func startProvider(people []person, secret []byte) (*provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &provider{
		url: "http://" + l.Addr().String(), secret: secret, stop: stop,
		people: make(map[string]person), requests: make(map[string]int),
	}
	for _, who := range people {
		p.people[who.email] = who
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /messages", p.take)
	mux.HandleFunc("GET /messages", p.look)
	p.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	p.atWork.Go(func() { p.server.Serve(l) }) // until close
	p.atWork.Go(func() { p.report(ctx) })
	return p, nil
}

func (p *provider) close() error {
	p.stop()
	err := p.server.Close()
	p.atWork.Wait()
	return err
}

// subscribe says where receipts go.
func (p *provider) subscribe(hook string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = hook
}

// take answers a request to send a mail.
func (p *provider) take(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get(keyHeader)
	var m mail
	body, err := io.ReadAll(r.Body)
	if err = errors.Join(err, json.Unmarshal(body, &m)); err != nil || key == "" {
		http.Error(w, "no mail", http.StatusBadRequest)
		return
	}
	switch now := p.next(key, m.To); now {
	case unavailable:
		http.Error(w, "no server is free", http.StatusServiceUnavailable)
	case inAnHour:
		w.Header().Set("Retry-After", "3600")
		http.Error(w, "maintenance", http.StatusServiceUnavailable)
	case reject:
		http.Error(w, fmt.Sprintf("550 5.1.1 <%s>: no such user; not sent: %s", m.To, m.Link), http.StatusUnprocessableEntity)
	case forgetAndHang:
		<-r.Context().Done()
	case takeItAndHang:
		p.accept(key, m)
		<-r.Context().Done()
	default:
		sent := p.accept(key, m)
		w.WriteHeader(http.StatusAccepted)
		json.NewEncoder(w).Encode(map[string]string{"id": sent.id})
	}
}

// look answers whether a mail was accepted with a key: its id, or "".
func (p *provider) look(w http.ResponseWriter, r *http.Request) {
	id := ""
	if sent := p.find(r.FormValue("key")); sent != nil {
		id = sent.id
	}
	json.NewEncoder(w).Encode(map[string]string{"id": id})
}

func (p *provider) next(key, to string) answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan := p.people[to].plan
	if len(plan) == 0 {
		return reject
	}
	n := min(p.requests[key], len(plan)-1)
	p.requests[key]++
	return plan[n]
}

// accept sends the mail, unless one was sent with this key.
func (p *provider) accept(key string, m mail) *sentMail {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sent := p.findLocked(key); sent != nil {
		return sent
	}
	sent := &sentMail{
		mail: m, key: key, id: fmt.Sprintf("msg-%d", len(p.sent)+1),
		acceptedAt: time.Now(), status: p.people[m.To].receipt,
	}
	p.sent = append(p.sent, sent)
	return sent
}

// find returns the mail that was accepted with the key, or nil.
func (p *provider) find(key string) *sentMail {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.findLocked(key)
}

func (p *provider) findLocked(key string) *sentMail {
	for _, sent := range p.sent {
		if sent.key == key {
			return sent
		}
	}
	return nil
}

// asked tells how often it was asked to send with this key.
func (p *provider) asked(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[key]
}

// report tells the subscriber what became of the mails, a while after each was
// accepted, and as often as it takes.
func (p *provider) report(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		hook := p.hook
		var due []*sentMail
		for _, sent := range p.sent {
			if !sent.acknowledged && time.Since(sent.acceptedAt) > 100*time.Millisecond {
				due = append(due, sent)
			}
		}
		p.mu.Unlock()
		if hook == "" {
			continue
		}
		for _, sent := range due {
			if p.tell(ctx, hook, sent) {
				p.mu.Lock()
				sent.acknowledged = true
				p.mu.Unlock()
			}
		}
	}
}

func (p *provider) tell(ctx context.Context, hook string, sent *sentMail) (acknowledged bool) {
	body, _ := json.Marshal(receipt{sent.id, sent.status}) // strings
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook, bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set(signatureHeader, sign(p.secret, "receipt", string(body)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// mails are those that were accepted.
func (p *provider) mails() []sentMail {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []sentMail
	for _, sent := range p.sent {
		all = append(all, *sent)
	}
	return all
}
