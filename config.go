package rota

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// A ConfigError is one fault of a configuration: a value that is not allowed in
// a Config, Policy or Retry, or anything that is wrong with a file of LoadConfig.
// It matches ErrConfig.
type ConfigError struct {
	File string // as given to LoadConfig; empty if the fault is not a file's

	// Line and Column say where in File the key begins, or the text that is no
	// TOML: both counted from 1, the column in bytes. They are 0 if the fault is
	// of no place in a file.
	Line, Column int

	Key     string // from the top: kinds."invoice.send".retry.base; empty if the whole text is at fault
	Problem string // what is wrong, as said of the key: is -1s
	Hint    string // what is allowed, or meant; may be empty
}

// Error returns one line, which begins with the place in the file as compilers
// write it, so that an editor can go there.
func (e *ConfigError) Error() string {
	place, subject := ErrConfig.Error(), "the text"
	if e.File != "" {
		place = e.File
	}
	if e.Line > 0 {
		place += fmt.Sprintf(":%d:%d", e.Line, e.Column)
	}
	if e.Key != "" {
		subject = e.Key
	}
	text := place + ": " + subject + " " + e.Problem
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return escape(text)
}

// Is makes every ConfigError match ErrConfig.
func (e *ConfigError) Is(target error) bool { return target == ErrConfig }

// faults gather all that is wrong with a configuration, so that it can be
// mended in one go.
type faults []*ConfigError

// bad notes a value that is not allowed.
func (f *faults) bad(key string, value any, allowed string) {
	*f = append(*f, &ConfigError{Key: key, Problem: fmt.Sprintf("is %v", value), Hint: "allowed: " + allowed})
}

// under notes the faults of a part that stands at key.
func (f *faults) under(key string, part faults) {
	for _, e := range part {
		e.Key = key + "." + e.Key
	}
	*f = append(*f, part...)
}

// err joins the faults; it is nil if there are none.
func (f faults) err() error {
	errs := make([]error, len(f))
	for i, e := range f {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// LoadConfig reads a Config from a TOML file of at most 1 MiB. Its keys are the
// fields' names in snake case, its durations text such as "90s"; docs/config.md
// in the source lists them all. What the file leaves out is zero, and so has its
// default. Redact and Logger can't stand in a file: set them afterwards.
//
// All faults of the file are reported at once: the error's Unwrap() []error
// gives them, each a *ConfigError that says where, what and what is allowed.
// Where the text is no TOML, that is the fault, and values are not looked at:
// they can't be told from what is behind it. If the file can't be read, the error wraps the system's, such as
// fs.ErrNotExist.
func LoadConfig(path string) (Config, error) {
	text, err := readConfig(path)
	if err != nil {
		return Config{}, fmt.Errorf("rota: load config: %w", err)
	}
	cfg, found := parseConfig(text)
	for _, e := range found {
		e.File = path
	}
	if err := found.err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

const maxConfig = 1 << 20 // bytes of a file

// readConfig reads a file, but of one that is too large only enough to know it.
func readConfig(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() // it was only read
	data, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	return string(data), err
}

// parseConfig finds the values with the toml package and their places with a
// keyMap.
func parseConfig(text string) (Config, faults) {
	var cfg Config
	if len(text) > maxConfig {
		return cfg, faults{{Problem: "is larger than 1 MiB"}}
	}
	text = strings.TrimLeft(text, "\ufeff") // byte order marks, which some editors write
	keys, refused := mapKeys(text)
	if refused != nil {
		return cfg, faults{refused}
	}
	found := keys.twice
	var tree map[string]any
	if _, err := toml.Decode(text, &tree); err != nil {
		e := syntaxFault(keys, err)
		if !slices.ContainsFunc(found, func(twice *ConfigError) bool { return twice.Line == e.Line }) {
			found = append(found, e) // else they are the same fault
		}
	} else {
		read := append(readTable(nil, tree, configKeys(&cfg)), cfg.check()...)
		for _, e := range read {
			e.Line, e.Column = keys.position(keys.first[e.Key])
		}
		found = append(found, read...)
	}
	slices.SortStableFunc(found, func(a, b *ConfigError) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column, strings.Compare(a.Key, b.Key))
	})
	return cfg, found
}

// syntaxFault is what the toml package said, with our own place: its lines are
// wrong where a text ends too early.
func syntaxFault(keys *keyMap, err error) *ConfigError {
	var syntax toml.ParseError
	if !errors.As(err, &syntax) {
		return &ConfigError{Problem: "is no TOML: " + err.Error()}
	}
	at := min(max(syntax.Position.Start, 0), len(keys.text))
	message := strings.TrimSuffix(syntax.Message, ".")
	e := &ConfigError{Problem: fmt.Sprintf("is no TOML: %.200s", message)} // it may quote a whole line
	e.Line, e.Column = keys.position(at)
	key, ok := keys.before(at)
	if line, _ := keys.position(key.first); !ok || line != e.Line {
		return e // the key of another line is not at fault
	}
	e.Key = key.name
	// The commonest slip is a word without quotes: grace = 10s.
	read, rest := keys.text[key.first:at], keys.text[at:]
	if strings.Contains(read, "=") && !strings.ContainsAny(read, `"'`) && startsWithLetter(rest) {
		e.Hint = `words and durations stand in quotes, such as "hold" or "90s"`
	}
	return e
}

func startsWithLetter(text string) bool {
	r, _ := utf8.DecodeRuneInString(text)
	return unicode.IsLetter(r)
}

// A setter puts a TOML value in the place it was made for, or says what is wrong
// with its type. Whether the value is allowed, check says.
type setter func(key toml.Key, value any) faults

func configKeys(c *Config) map[string]setter {
	return map[string]setter{
		"name":          setText(&c.Name),
		"max_running":   setWhole(&c.MaxRunning),
		"max_hung":      setWhole(&c.MaxHung),
		"max_args":      setWhole(&c.MaxArgs),
		"lease_ttl":     setDuration(&c.LeaseTTL, ""),
		"grace":         setDuration(&c.Grace, "none"),
		"unwind":        setDuration(&c.Unwind, ""),
		"poll_interval": setDuration(&c.PollInterval, "never"),
		"durability":    setText(&c.Durability),
		"kinds":         setKinds(&c.Kinds),
	}
}

func policyKeys(p *Policy) map[string]setter {
	return map[string]setter{
		"timeout":     setDuration(&p.Timeout, "none"),
		"retry":       setRetry(&p.Retry),
		"max_running": setWhole(&p.MaxRunning),
		"rate":        setRate(&p.Rate),
		"on_unknown":  setText(&p.OnUnknown),
		"max_deaths":  setWhole(&p.MaxDeaths),
	}
}

func retryKeys(r *Retry) map[string]setter {
	return map[string]setter{
		"base":         setDuration(&r.Base, ""),
		"factor":       setNumber(&r.Factor),
		"cap":          setDuration(&r.Cap, ""),
		"jitter":       setJitter(&r.Jitter),
		"max_attempts": setWhole(&r.MaxAttempts),
		"max_elapsed":  setDuration(&r.MaxElapsed, ""),
	}
}

func setRetry(to *Retry) setter {
	return func(key toml.Key, value any) faults { return readTable(key, value, retryKeys(to)) }
}

func setRate(to *Rate) setter {
	return func(key toml.Key, value any) faults {
		var rate Rate
		found := readTable(key, value, map[string]setter{
			"count": setWhole(&rate.Count),
			"per":   setDuration(&rate.Per, ""),
		})
		if found == nil {
			*to = rate // half a rate would be a second fault
		}
		return found
	}
}

func setKinds(to *map[string]Policy) setter {
	return func(key toml.Key, value any) faults {
		table, ok := value.(map[string]any)
		if !ok {
			return wrongType(key, value, `a table, such as [kinds."invoice.send"]`)
		}
		*to = make(map[string]Policy, len(table))
		var found faults
		for kind, value := range table {
			var policy Policy
			found = append(found, readTable(below(key, kind), value, policyKeys(&policy))...)
			(*to)[kind] = policy
		}
		return found
	}
}

func setText[T ~string](to *T) setter {
	return func(key toml.Key, value any) faults {
		text, ok := value.(string)
		if !ok {
			return wrongType(key, value, "text in quotes")
		}
		*to = T(text)
		return nil
	}
}

func setWhole(to *int) setter {
	return func(key toml.Key, value any) faults {
		n, ok := value.(int64)
		if !ok || int64(int(n)) != n {
			return wrongType(key, value, "a whole number, such as 10")
		}
		*to = int(n)
		return nil
	}
}

func setNumber(to *float64) setter {
	return func(key toml.Key, value any) faults {
		switch n := value.(type) {
		case float64:
			*to = n
		case int64:
			*to = float64(n)
		default:
			return wrongType(key, value, "a number, such as 1.5")
		}
		return nil
	}
}

// setDuration takes text such as "90s". word, if not empty, stands for the
// negative duration that switches something off.
func setDuration(to *time.Duration, word string) setter {
	allowed := `a duration in quotes, such as "90s" or "1h30m" (units: ns, us, ms, s, m, h)`
	if word != "" {
		allowed += fmt.Sprintf(", or %q", word)
	}
	return func(key toml.Key, value any) (found faults) {
		switch v := value.(type) {
		case string:
			d, err := time.ParseDuration(v)
			if word != "" && v == word {
				d, err = -1, nil
			}
			if err != nil {
				found.bad(key.String(), quoted(v), allowed)
				return found
			}
			*to = d
			return nil
		case int64, float64:
			return faults{{Key: key.String(), Problem: fmt.Sprintf("is a duration without its unit: %v", v), Hint: "allowed: " + allowed}}
		default:
			return wrongType(key, value, allowed)
		}
	}
}

func setJitter(to *Jitter) setter {
	return func(key toml.Key, value any) faults {
		text, ok := value.(string)
		if !ok {
			return wrongType(key, value, allowedJitter)
		}
		var jitter Jitter
		var e *ConfigError
		if errors.As(jitter.UnmarshalText([]byte(text)), &e) {
			e.Key = key.String()
			return faults{e}
		}
		*to = jitter
		return nil
	}
}

// readTable gives each value of a table to the setter of its key.
func readTable(key toml.Key, value any, setters map[string]setter) faults {
	table, ok := value.(map[string]any)
	if !ok {
		return wrongType(key, value, "a table of "+allKeys(setters))
	}
	var found faults
	for name, value := range table {
		key := below(key, name)
		if set := setters[name]; set != nil {
			found = append(found, set(key, value)...)
		} else {
			found = append(found, unknownKey(key, value, setters))
		}
	}
	return found
}

// unknownKey says what was meant, as far as that can be guessed: a misspelt key,
// the kind's name without its quotes, or the key of another table.
func unknownKey(key toml.Key, value any, setters map[string]setter) *ConfigError {
	name := key[len(key)-1]
	e := &ConfigError{Key: key.String(), Problem: "is no known key", Hint: "allowed: " + allKeys(setters)}
	if meant := nearest(name, setters); meant != "" {
		e.Hint = "did you mean " + meant + "? " + e.Hint
		return e
	}
	if _, table := value.(map[string]any); table && len(key) == 3 {
		e.Hint = fmt.Sprintf("a kind's name with dots stands in quotes: [%s]", below(key[:1], key[1]+"."+name))
		return e
	}
	switch {
	case configKeys(new(Config))[name] != nil:
		e.Hint = name + " stands at the top of the file, before the first [table]"
	case policyKeys(new(Policy))[name] != nil:
		e.Hint = name + ` stands in a kind's table, such as [kinds."invoice.send"]`
	case retryKeys(new(Retry))[name] != nil:
		e.Hint = name + ` stands in a kind's retry table, such as [kinds."invoice.send".retry]`
	}
	return e
}

// nearest is the key that name is most likely a misspelling of, or empty: at
// most two letters differ, and more than half of them are right.
func nearest(name string, setters map[string]setter) string {
	meant, least := "", 3
	for _, key := range slices.Sorted(maps.Keys(setters)) {
		if d := distance(strings.ToLower(name), key); d < least && 2*d < len(key) {
			meant, least = key, d
		}
	}
	return meant
}

func wrongType(key toml.Key, value any, allowed string) faults {
	return faults{{Key: key.String(), Problem: "is " + describe(value), Hint: "allowed: " + allowed}}
}

// describe names a TOML value.
func describe(value any) string {
	switch v := value.(type) {
	case string:
		return "the text " + quoted(v)
	case int64:
		return fmt.Sprintf("the whole number %d", v)
	case float64:
		return fmt.Sprintf("the decimal number %v", v)
	case bool:
		return fmt.Sprintf("the word %t", v)
	case time.Time:
		return "a date or time"
	case map[string]any:
		return "a table"
	default:
		return "an array"
	}
}

// keyOf writes a key of several parts, with quotes where a part needs them.
func keyOf(parts ...string) string { return toml.Key(parts).String() }

// quoted gives as much of a text as helps to find it.
func quoted[T ~string](text T) string { return fmt.Sprintf("%.60q", text) }

// below is the key of a value in the table at key.
func below(key toml.Key, name string) toml.Key { return append(slices.Clip(key), name) }

func allKeys(setters map[string]setter) string {
	return strings.Join(slices.Sorted(maps.Keys(setters)), ", ")
}

// A keyMap knows where in a TOML text each key stands, which the toml package
// does not tell. It is made by a scan that knows just enough of TOML to tell
// keys from values. Text that is no TOML may end the scan early: the toml
// package then finds the same fault and has the word.
type keyMap struct {
	text  string
	pos   int            // the scan's place
	lines []int          // where lines begin
	keys  []keyPlace     // in the order of the text
	first map[string]int // where each key is named first, also that of a table which is only implied

	// twice are the values of keys that were there before. The toml package lets
	// some pass and drops the value: a.b = 1, then a = 2. They are not looked for
	// behind an array, whose elements have the same keys by right; no key of a
	// Config takes one, so the file has a fault in any case.
	twice  faults
	arrays bool

	refused *ConfigError
}

// keyPlace is where the key of a value or of a [table] is written: its first
// part and its last, of a.b.c the a and the c.
type keyPlace struct {
	name        string
	first, last int
}

// What no configuration needs, and what would take the toml package time and
// memory in the square of it.
const (
	maxKeyParts   = 16 // also the depth of tables and arrays in each other
	maxKeyBytes   = 1024
	blanks        = " \t"
	blanksOrLines = " \t\r\n"
)

func mapKeys(text string) (*keyMap, *ConfigError) {
	m := &keyMap{text: text, lines: []int{0}, first: make(map[string]int)}
	for i := range len(text) {
		if text[i] == '\n' {
			m.lines = append(m.lines, i+1)
		}
	}
	if !utf8.ValidString(text) {
		m.refuse(len(validPrefix(text)), "is not UTF-8", "")
	} else {
		m.scan()
	}
	return m, m.refused
}

// validPrefix is what stands before the first byte that is not UTF-8.
func validPrefix(text string) string {
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)) {
			return text[:i]
		}
	}
	return text
}

// position counts from 1.
func (m *keyMap) position(offset int) (line, column int) {
	line, found := slices.BinarySearch(m.lines, offset)
	if found {
		line++
	}
	return line, offset - m.lines[line-1] + 1
}

// before is the last key that begins at offset or before it.
func (m *keyMap) before(offset int) (key keyPlace, ok bool) {
	i, found := slices.BinarySearchFunc(m.keys, offset, func(key keyPlace, offset int) int { return key.first - offset })
	if !found {
		i--
	}
	if i < 0 {
		return keyPlace{}, false
	}
	return m.keys[i], true
}

func (m *keyMap) refuse(offset int, problem, hint string) {
	m.refused = &ConfigError{Problem: problem, Hint: hint}
	m.refused.Line, m.refused.Column = m.position(offset)
}

// scan reads the whole text. Like all steps of the scan it reports whether it
// could go on.
func (m *keyMap) scan() bool {
	var table toml.Key
	for {
		m.skip(blanksOrLines)
		switch {
		case m.pos == len(m.text):
			return true
		case m.accept("["):
			m.arrays = m.accept("[") || m.arrays
			key, ok := m.key(nil)
			if !ok || !m.accept("]") {
				return false
			}
			m.accept("]")
			table = key
		case !m.pair(table, 0):
			return false
		}
	}
}

// skip passes what cutset holds and, if that includes line ends, comments.
func (m *keyMap) skip(cutset string) {
	for {
		m.pos = len(m.text) - len(strings.TrimLeft(m.text[m.pos:], cutset))
		if !strings.HasSuffix(cutset, "\n") || !m.accept("#") {
			return
		}
		m.until("\n")
	}
}

func (m *keyMap) accept(token string) bool {
	if !strings.HasPrefix(m.text[m.pos:], token) {
		return false
	}
	m.pos += len(token)
	return true
}

// until goes to the next of the characters, or to the end, and gives the text
// between.
func (m *keyMap) until(chars string) string {
	rest := m.text[m.pos:]
	if i := strings.IndexAny(rest, chars); i >= 0 {
		rest = rest[:i]
	}
	m.pos += len(rest)
	return rest
}

// pair reads key = value.
func (m *keyMap) pair(table toml.Key, depth int) bool {
	known := len(m.first)
	key, ok := m.key(table)
	if !ok || !m.accept("=") {
		return false
	}
	if len(m.first) == known && !m.arrays {
		again := m.keys[len(m.keys)-1]
		line, _ := m.position(m.first[again.name])
		e := &ConfigError{Key: again.name, Problem: fmt.Sprintf("is set twice, first in line %d", line)}
		e.Line, e.Column = m.position(again.last)
		m.twice = append(m.twice, e)
	}
	return m.value(key, depth)
}

// key reads a key with all its parts, and the blanks around it.
func (m *keyMap) key(table toml.Key) (toml.Key, bool) {
	m.skip(blanks)
	key, place := table, keyPlace{first: m.pos}
	for {
		place.last = m.pos
		part, ok := m.part()
		if !ok {
			return nil, false
		}
		key = below(key, part)
		if len(key) > maxKeyParts || len(strings.Join(key, ".")) > maxKeyBytes {
			m.refuse(place.last, "has a key that is too long", fmt.Sprintf("allowed: %d parts and %d bytes", maxKeyParts, maxKeyBytes))
			return nil, false
		}
		place.name = key.String()
		if _, again := m.first[place.name]; !again {
			m.first[place.name] = place.last
		}
		m.skip(blanks)
		if !m.accept(".") {
			m.keys = append(m.keys, place)
			return key, true
		}
		m.skip(blanks)
	}
}

// part reads one part of a key: bare, 'literal' or "with escapes".
func (m *keyMap) part() (string, bool) {
	start := m.pos
	if m.accept("'") {
		return m.until("'\n"), m.accept("'")
	}
	if strings.HasPrefix(m.text[m.pos:], `"`) {
		if !m.passQuoted(`"`) {
			return "", false
		}
		var part struct{ Name string }
		err := toml.Unmarshal([]byte("Name="+m.text[start:m.pos]), &part)
		return part.Name, err == nil
	}
	for m.pos < len(m.text) && isBare(m.text[m.pos]) {
		m.pos++
	}
	return m.text[start:m.pos], m.pos > start
}

func isBare(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// value passes a value and notes the keys of inline tables in it.
func (m *keyMap) value(key toml.Key, depth int) bool {
	m.skip(blanks)
	for _, quote := range []string{`"""`, `'''`, `"`, `'`} {
		if strings.HasPrefix(m.text[m.pos:], quote) {
			return m.passQuoted(quote)
		}
	}
	if depth == maxKeyParts {
		m.refuse(m.pos, "has tables and arrays too deep in each other", fmt.Sprintf("allowed: %d levels", maxKeyParts))
		return false
	}
	switch {
	case m.accept("["):
		m.arrays = true
		return m.list("]", func() bool { return m.value(key, depth+1) })
	case m.accept("{"):
		return m.list("}", func() bool { return m.pair(key, depth+1) })
	default: // a number, a date, true or false
		return m.until(",]}#\n") != ""
	}
}

// list passes the elements of an array or an inline table, and its end.
func (m *keyMap) list(end string, element func() bool) bool {
	for {
		m.skip("," + blanksOrLines)
		if m.accept(end) {
			return true
		}
		if !element() {
			return false
		}
	}
}

// passQuoted passes a text with its quotes.
func (m *keyMap) passQuoted(quote string) bool {
	m.pos += len(quote)
	for m.pos < len(m.text) {
		switch {
		case m.accept(quote):
			if len(quote) == 3 { // """a""""" ends with two quotes of text
				m.accept(quote[:1])
				m.accept(quote[:1])
			}
			return true
		case quote[0] == '"' && m.accept(`\`):
			m.pos = min(m.pos+1, len(m.text))
		case len(quote) == 1 && m.text[m.pos] == '\n':
			return false
		default:
			m.pos++
		}
	}
	return false
}
