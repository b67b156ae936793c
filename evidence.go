package rota

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
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
// place is kept, so that a reader sees that something was there. An expression
// is only tried on a text that holds one of its words: most errors hold none.
var masks = []struct {
	words  []string
	secret *regexp.Regexp
	shown  string
}{
	{[]string{"://"}, regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/]*@`), "${1}***@"},
	{[]string{"://"}, regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]+@`), "${1}***@"},
	// A password with a bare slash, which is why the address could not be parsed.
	{[]string{"://"}, regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[0-9]*[^\s/@0-9][^\s"]*@`), "${1}***@"},
	{[]string{"key="}, regexp.MustCompile(`(?i)([?&]key=)[^\s&;,"']+`), "${1}***"},
	{[]string{"eyj"}, regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*`), "***"}, // a JSON Web Token
	{[]string{"authorization"}, regexp.MustCompile(`(?i)\b(authorization\s*[:=]\s*)((?:basic|bearer|digest|token)\s+)?[^\s,;"']+`), "${1}${2}***"},
	{[]string{"bearer"}, regexp.MustCompile(`(?i)\b(bearer\s+)[a-z0-9._~+/=-]{8,}`), "${1}***"},
	// name=secret, "name": "a secret", and that again within a quoted text
	{[]string{"pass", "pwd", "secret", "token", "key", "sig"},
		regexp.MustCompile(`(?i)\b([a-z0-9_-]*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|signature|sig)(?:\\*["'])?\s*[=:]\s*)` +
			`(?:"(?:[^"\\]|\\.)*"?|\\+"[^"]*"?|'[^']*'?|[^\s&;,"']+)`), "${1}***"},
}

// mask hides what masks know.
func mask(text string) string {
	lower := strings.ToLower(text)
	for _, m := range masks {
		if slices.ContainsFunc(m.words, func(word string) bool { return strings.Contains(lower, word) }) {
			text = m.secret.ReplaceAllString(text, m.shown)
		}
	}
	return text
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
		text = redacted(text, redact)
	}
	text = escape(mask(text))
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

// redacted is what the hook makes of the text. When it panics nothing may be
// shown, and the process must not die of it.
func redacted(text string, redact func(string) string) (shown string) {
	defer func() {
		if p := recover(); p != nil {
			shown = fmt.Sprintf("withheld: the Redact hook panicked on %d bytes", len(text))
		}
	}()
	return redact(text)
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
	key, data := safeText(key, 64+40, redact), noteText(value, redact)
	n.mu.Lock()
	defer n.mu.Unlock()
	size := n.size + noteSize(key, data)
	if old, replaced := n.values[key]; replaced {
		size -= noteSize(key, old)
	}
	if n.closed || size > maxNote {
		n.lost++
		return
	}
	if n.values == nil {
		n.values = make(map[string]json.RawMessage)
	}
	n.values[key], n.size = data, size
}

// noteSize is what a note takes in the object that is stored.
func noteSize(key string, data []byte) int {
	name, _ := json.Marshal(key) // a string
	return len(name) + len(data) + len(":,")
}

// noteText is the note's JSON, its texts made safe however deep they are.
func noteText(value any, redact func(string) string) []byte {
	if err, ok := value.(error); ok {
		value = errorText(err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		value = "not noted: " + errorText(err)
	} else if _, isText := value.(string); !isText {
		if len(data) > maxNote {
			return data // it will be lost
		}
		var plain any // and not value, which may point to the handler's own
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		_ = d.Decode(&plain) // what Marshal wrote
		value = plain
	}
	data, _ = json.Marshal(safeNote(value, redact)) // of plain JSON
	return data
}

func safeNote(value any, redact func(string) string) any {
	switch v := value.(type) {
	case string:
		return safeText(v, maxErrorText, redact)
	case []any:
		for i := range v {
			v[i] = safeNote(v[i], redact)
		}
	case map[string]any:
		safe := make(map[string]any, len(v))
		for key, value := range v {
			safe[safeText(key, maxErrorText, redact)] = safeNote(value, redact)
		}
		return safe
	}
	return value
}

// text is the JSON object that is stored, or nil when nothing was noted. final
// ends the taking of notes.
func (n *notes) text(final bool) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = n.closed || final
	all := maps.Clone(n.values)
	if n.lost > 0 {
		if all == nil {
			all = make(map[string]json.RawMessage)
		}
		all["rota_notes_lost"] = json.RawMessage(fmt.Sprint(n.lost))
	}
	if len(all) == 0 {
		return nil
	}
	data, _ := json.Marshal(all) // keys are strings and values are JSON: it can't fail
	return string(data)
}
