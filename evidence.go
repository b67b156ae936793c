package rota

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Bounds of what one attempt may leave behind, in bytes.
const (
	maxErrorText = 2 << 10
	maxStack     = 8 << 10
	maxNote      = 16 << 10
)

// masks hides what must not be read by whoever may read evidence. The secret's
// place is kept, so that a reader sees that something was there.
var masks = []struct {
	secret *regexp.Regexp
	shown  string
}{
	{regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/]*@`), "${1}***@"},
	{regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]+@`), "${1}***@"},
	{regexp.MustCompile(`(?i)\b(authorization\s*[:=]\s*)((?:basic|bearer|digest|token)\s+)?[^\s,;"']+`), "${1}${2}***"},
	{regexp.MustCompile(`(?i)\b(bearer\s+)[a-z0-9._~+/=-]{8,}`), "${1}***"},
	{regexp.MustCompile(`(?i)\b((?:[a-z0-9]+[_-])*(?:password|passwd|pwd|secret|token|api[_-]?key|apikey|access[_-]?key|signature|sig)["']?\s*[=:]\s*["']?)[^\s&;,"']+`), "${1}***"},
}

// safeText makes text of any origin fit for evidence and logs: redacted first,
// credentials masked, valid UTF-8, control and bidirectional characters
// escaped, and not longer than limit bytes, of which the end keeps a quarter.
func safeText(text string, limit int, redact func(string) string) string {
	// Far more than is kept, so that a cut here can't part a secret from the
	// words that betray it near what is shown; far less than a hostile 50 MB.
	const window = 16 << 10
	omitted := 0
	if len(text) > 4*window {
		omitted = len(text) - 2*window
		text = text[:window] + "\x00" + text[len(text)-window:]
	}
	if redact != nil {
		text = redact(text)
	}
	for _, m := range masks {
		text = m.secret.ReplaceAllString(text, m.shown)
	}
	text = escape(text)
	if len(text) <= limit && omitted == 0 {
		return text
	}
	head, tail := limit*3/4-40, limit/4
	if len(text) > limit {
		omitted += len(text) - head - tail
	}
	return validCut(text[:min(head, len(text))]) +
		fmt.Sprintf(" …[%d bytes omitted]… ", omitted) +
		validCut(text[max(len(text)-tail, 0):])
}

// validCut drops the halves of characters that a cut at a byte left.
func validCut(s string) string { return strings.ToValidUTF8(s, "") }

// escape writes what could disturb a reader, a terminal or a log as Go would
// write it in a string; newlines too, so that a record stays one line.
func escape(text string) string {
	harmless := func(r rune) bool {
		return r == ' ' || r != utf8.RuneError && unicode.IsPrint(r)
	}
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !harmless(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case harmless(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// errorText is err's message; a message that panics is an answer, too.
func errorText(err error) (text string) {
	if err == nil {
		return ""
	}
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("%T: its Error method panicked: %v", err, p)
		}
	}()
	return err.Error()
}

// notes gathers what a handler adds to the evidence of its attempt.
type notes struct {
	mu     sync.Mutex // guards all below; a handler may note from several goroutines
	values map[string]json.RawMessage
	size   int
	lost   int
	closed bool
}

func (n *notes) add(key string, value any, redact func(string) string) {
	if text, ok := value.(string); ok {
		value = safeText(text, maxErrorText, redact)
	}
	data, err := json.Marshal(value)
	if err != nil {
		data, _ = json.Marshal("not noted: " + safeText(errorText(err), maxErrorText, redact))
	}
	key = safeText(key, 64+40, nil)
	n.mu.Lock()
	defer n.mu.Unlock()
	size := n.size + len(key) + len(data) - len(n.values[key])
	if n.closed || size > maxNote {
		n.lost++
		return
	}
	if n.values == nil {
		n.values = make(map[string]json.RawMessage)
	}
	n.values[key], n.size = data, size
}

// text is the JSON object that is stored, or nil when nothing was noted. final
// ends the taking of notes.
func (n *notes) text(final bool) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = n.closed || final
	if n.lost > 0 && n.values != nil {
		n.values["rota_notes_lost"] = json.RawMessage(fmt.Sprint(n.lost))
	}
	if len(n.values) == 0 {
		return nil
	}
	data, _ := json.Marshal(n.values) // keys are strings and values are JSON: it can't fail
	return string(data)
}
