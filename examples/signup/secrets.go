package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"regexp"
	"strings"
)

// recipientHash is the same for all mails to one address. Without the secret it
// can't be compared with a guess.
func (a *app) recipientHash(email string) string {
	return sign(a.Secret, "recipient", strings.ToLower(strings.TrimSpace(email)))
}

// token is derived and never stored, so that every attempt sends the same one
// and a reader of the database can't verify anybody.
func (a *app) token(event string) string { return sign(a.Secret, "token", event) }

func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// sign is HMAC-SHA256; the purpose keeps one use of the secret from serving
// another.
func sign(secret []byte, purpose, text string) string {
	mac := hmac.New(sha256.New, secret)
	io.WriteString(mac, purpose+"\x00"+text)
	return hex.EncodeToString(mac.Sum(nil))
}

var (
	addresses = regexp.MustCompile(`[^\s<>()",;:]+@[^\s<>()",;:]+`)
	links     = regexp.MustCompile(`/verify/\w+`)
)

// redact takes addresses and tokens out of a text, such as a provider's answer
// that repeats what it was sent.
func redact(text string) string {
	return links.ReplaceAllString(addresses.ReplaceAllString(text, "[recipient]"), "/verify/[token]")
}
