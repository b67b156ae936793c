package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/seed-f4ae5dd2/rota"
)

// mail is what the provider is asked to send.
type mail struct {
	To       string `json:"to"`
	Template string `json:"template"`
	Link     string `json:"link"`
}

// client speaks to the mail provider.
type client struct {
	url string
}

const (
	keyHeader       = "Idempotency-Key"
	signatureHeader = "X-Signature"
)

// send asks the provider to send the mail, and returns its id there. A second
// mail with the same key is not sent: the provider answers with the first's id.
func (c client) send(ctx context.Context, key string, m mail) (id string, err error) {
	body, err := json.Marshal(m)
	if err != nil {
		return "", rota.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/messages", bytes.NewReader(body))
	if err != nil {
		return "", rota.Permanent(err)
	}
	req.Header.Set(keyHeader, key)
	return c.do(req)
}

// find returns the id of the mail that was accepted with the key, or "".
func (c client) find(ctx context.Context, key string) (id string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/messages?key="+url.QueryEscape(key), nil)
	if err != nil {
		return "", err
	}
	return c.do(req)
}

// do returns the id in the answer. What the provider says to an error goes into
// the evidence, where the status alone would say too little; what it must not
// say there is taken out by Config.Redact.
func (c client) do(req *http.Request) (id string, err error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err // a timeout, a cut connection: Rota knows them
	}
	defer resp.Body.Close()
	if err := rota.HTTPError(resp); err != nil {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // the status is enough, if need be
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
	}
	var answer struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&answer); err != nil {
		// It said yes, in words that can't be read.
		return "", rota.Unknown(fmt.Errorf("answer of the provider: %w", err))
	}
	return answer.ID, nil
}
