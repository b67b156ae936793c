package rota

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/robfig/cron/v3"
)

// maxSpecLength is the longest spec, in bytes, that ParseSpec looks at.
const maxSpecLength = 1024

// ErrSpec is matched, by errors.Is, by every error that ParseSpec returns. The
// remedy is in the text; errors.As with a *SpecError gives it in parts.
var ErrSpec = errors.New("invalid schedule spec")

// A SpecError says what is wrong with a spec, and where.
type SpecError struct {
	Spec string // the text as given to ParseSpec

	// Field is the part at fault: "second", "minute", "hour", "day of month",
	// "month", "day of week", "descriptor", "@every", "zone", or "spec" for the
	// whole.
	Field string

	Value string // the faulty text within the field; may be empty
	Pos   int    // byte of Spec at which Value begins, counted from 1; 0: not in Spec

	Problem string // what is wrong, naming field and value
	Hint    string // what is allowed, or meant; may be empty
}

// Error returns one line with spec, position, problem and hint.
func (e *SpecError) Error() string {
	spec := e.Spec
	if len(spec) > 80 {
		spec = spec[:80] + "..."
	}
	text := "spec " + strconv.Quote(spec)
	if e.Pos > 0 {
		text += " at column " + strconv.Itoa(e.Pos)
	}
	text += ": " + e.Problem
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Is makes every SpecError match ErrSpec.
func (e *SpecError) Is(target error) bool { return target == ErrSpec }

// SpecOptions are what ParseSpec has to know beside the text. The zero value is
// five fields in UTC.
type SpecOptions struct {
	// Zone is an IANA name such as Europe/Berlin, "Local" for the zone of this
	// machine, or empty for UTC. A CRON_TZ= or TZ= in the spec wins over it.
	Zone string

	// Seconds says that specs have six fields, the first being the second.
	Seconds bool

	// Name seeds H; by custom it is the schedule's name. A spec with H and
	// without a name is refused, for all of them would fire at once.
	Name string
}

// ParseSpec reads a spec: five fields (minute, hour, day of month, month, day of
// week), six with opts.Seconds, or one of @yearly, @annually, @monthly, @weekly,
// @daily, @midnight, @hourly and "@every 1h30m". In front may stand CRON_TZ=Zone
// or TZ=Zone and a blank. The grammar is in docs/cron.md. All errors are a
// *SpecError and match ErrSpec; a spec that never fires is one, too.
//
// Zones come from the system, or from the program if it imports time/tzdata.
func ParseSpec(spec string, opts SpecOptions) (Spec, error) {
	var room [2][48]byte // enough for most, so that the buffers need not grow
	p := parser{whole: spec, opts: opts, canonical: room[0][:0], plain: room[1][:0]}
	if err := p.parse(); err != nil {
		err.Spec = spec
		return Spec{}, err
	}
	return p.s, nil
}

// A fieldDef holds what the grammar says about one of the fields.
type fieldDef struct {
	name     string // in errors, and in the hash of H
	min, max int
	top      int    // what a star and v/s run to
	topH     int    // what H runs to: day 28 is in every month
	names    string // three letters each, the first standing for min
	what     string // allowed values, for hints
}

const (
	secondField = iota
	minuteField
	hourField
	domField
	monthField
	dowField
)

var fieldDefs = [6]fieldDef{
	{"second", 0, 59, 59, 59, "", "a second is 0 to 59"},
	{"minute", 0, 59, 59, 59, "", "a minute is 0 to 59"},
	{"hour", 0, 23, 23, 23, "", "an hour is 0 to 23"},
	{"day of month", 1, 31, 31, 28, "", "a day of month is 1 to 31, L, L-n, LW or nW"},
	{"month", 1, 12, 12, 12, "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", "a month is 1 to 12 or JAN to DEC"},
	{"day of week", 0, 7, 6, 6, "SUNMONTUEWEDTHUFRISAT",
		"a day of week is 0 to 7 (0 and 7 are Sunday), SUN to SAT, d#n or dL"},
}

// descriptors maps each to its fields and to the text that String gives.
var descriptors = []struct{ name, fields, canonical string }{
	{"@yearly", "0 0 1 1 *", "@yearly"},
	{"@annually", "0 0 1 1 *", "@yearly"},
	{"@monthly", "0 0 1 * *", "@monthly"},
	{"@weekly", "0 0 * * 0", "@weekly"},
	{"@daily", "0 0 * * *", "@daily"},
	{"@midnight", "0 0 * * *", "@daily"},
	{"@hourly", "0 * * * *", "@hourly"},
}

// A parser turns one text into a Spec. It checks everything itself, as robfig's
// parser takes more than the grammar has and panics on some of the rest, and
// hands it a plain form of the fields: numbers only, Sunday as 0, no
// extensions. What robfig makes of that are the sets of the Spec.
type parser struct {
	whole string // the text as given, for positions
	opts  SpecOptions
	s     Spec

	canonical []byte  // the fields for String
	plain     []byte  // the fields for robfig
	listed    [6]bool // whether the field has an element that robfig knows
}

// fault makes an error about value, which begins at pos, or nowhere if that is -1.
func fault(field, value string, pos int, problem, hint string) *SpecError {
	return &SpecError{Field: field, Value: value, Pos: pos + 1, Problem: problem, Hint: hint}
}

func (p *parser) parse() *SpecError {
	if len(p.whole) > maxSpecLength {
		return fault("spec", "", -1, fmt.Sprintf("a spec of %d bytes is too long", len(p.whole)),
			fmt.Sprintf("at most %d are allowed", maxSpecLength))
	}
	text := strings.TrimRight(p.whole, " \t")
	pos := skipBlanks(text, 0)
	zone, zonePos := p.opts.Zone, -1
	if name, ok := cutZone(text[pos:]); ok {
		zonePos = pos + strings.IndexByte(text[pos:], '=') + 1
		zone = name
		p.s.prefixed = true
		pos = skipBlanks(text, zonePos+len(name))
	}
	if err := p.zone(zone, zonePos); err != nil {
		return err
	}
	rest := text[pos:]
	switch {
	case rest == "" && p.s.prefixed:
		return fault("spec", "", pos, "the spec is missing after the zone", "write "+text+" 0 3 * * *")
	case rest == "":
		return fault("spec", "", -1, "the spec is empty", "a cron spec has five fields, as in 0 3 * * *")
	case rest[0] == '@':
		return p.descriptor(rest, pos)
	}
	return p.fields(rest, pos, p.opts.Seconds)
}

// fields reads text, which begins at pos, as five fields or six with seconds.
func (p *parser) fields(text string, pos int, seconds bool) *SpecError {
	var at [6]int // where each field begins in text
	var field [6]string
	n := 0
	for i := 0; i < len(text); i = skipBlanks(text, i) {
		end := i + blankIndex(text[i:])
		if n < len(field) {
			at[n], field[n] = pos+i, text[i:end]
		}
		n++
		i = end
	}
	first := minuteField
	if seconds {
		first = secondField
	}
	if n != 6-first {
		return wrongCount(n, 6-first, field[0])
	}
	for i := first; i <= dowField; i++ {
		if i > first {
			p.canonical = append(p.canonical, ' ')
			p.plain = append(p.plain, ' ')
		}
		if err := p.field(i, field[i-first], at[i-first]); err != nil {
			return err
		}
	}
	p.s.text = string(p.canonical)
	return p.compile(pos, seconds)
}

func wrongCount(n, want int, first string) *SpecError {
	word := []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight"}
	count := strconv.Itoa(n) + " fields"
	if n == 1 {
		count = "one field"
	} else if n < len(word) {
		count = word[n] + " fields"
	}
	hint := "they are minute, hour, day of month, month, day of week"
	switch {
	case strings.Contains(first, "="):
		hint = "a zone is written CRON_TZ=Europe/Berlin, once and in front"
	case n == 6 && want == 5:
		hint = "a second in front must be asked for (SpecOptions.Seconds)"
	case n == 5 && want == 6:
		hint = "this one has the second in front: put a 0 there"
	case want == 6:
		hint = "they are second, minute, hour, day of month, month, day of week"
	}
	return fault("spec", "", -1, count+", a cron spec has "+word[want], hint)
}

// compile lets robfig read the plain fields and takes over its sets.
func (p *parser) compile(pos int, seconds bool) *SpecError {
	options := cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow
	if seconds {
		options |= cron.Second
	}
	plain := p.s.text
	if string(p.plain) != plain {
		plain = string(p.plain)
	}
	parsed, err := cron.NewParser(options).Parse(plain)
	sets, ok := parsed.(*cron.SpecSchedule)
	if err != nil || !ok { // no text is known to get here
		return fault("spec", "", pos, fmt.Sprintf("not understood: %v", err), "")
	}
	const star = 1 << 63 // robfig's mark for a star among the bits
	s := &p.s
	s.second, s.minute, s.hour = sets.Second&^star, sets.Minute&^star, sets.Hour&^star
	s.days.month = sets.Month &^ star
	if p.listed[domField] {
		s.days.dom = sets.Dom &^ star
	}
	if p.listed[dowField] {
		s.days.dow |= fiveWeeks * (sets.Dow &^ star)
	}
	if !s.days.possible() {
		return fault("spec", "", pos, "the spec never fires: no date has the day of month, month and day of week of "+p.s.text,
			"it must match some day of some year")
	}
	return nil
}

// field reads one field, a list of elements.
func (p *parser) field(i int, text string, pos int) *SpecError {
	f := &fieldDefs[i]
	for j := range len(text) {
		if text[j] <= ' ' || text[j] > '~' {
			r, size := utf8.DecodeRuneInString(text[j:])
			return fault(f.name, text[j:j+size], pos+j,
				fmt.Sprintf("%s %.40q holds the character %U", f.name, text, r), "only plain ASCII is allowed")
		}
	}
	if (i == domField || i == dowField) && (text[0] == '*' || text[0] == '?') {
		p.s.days.both = true // as in Vixie's cron, where the first character alone decides
	}
	plainStart := len(p.plain)
	for first := true; ; first = false {
		element, rest, more := strings.Cut(text, ",")
		if element == "" {
			return fault(f.name, "", pos, f.name+" list has an empty element", f.what)
		}
		if !first {
			p.canonical = append(p.canonical, ',')
		}
		if err := p.element(i, element, pos); err != nil {
			return err
		}
		if !more {
			break
		}
		text, pos = rest, pos+len(element)+1
	}
	if len(p.plain) == plainStart { // extensions only: something for robfig to read
		p.plain = append(p.plain, '*')
	}
	return nil
}

// element reads one element of a list: * v a-b, with or without a step, H, or
// one of the extensions for days.
func (p *parser) element(i int, text string, pos int) *SpecError {
	f := &fieldDefs[i]
	switch {
	case i == domField && strings.ContainsAny(text, "LlWw"):
		return p.domExtension(text, pos)
	case i == dowField && strings.ContainsAny(text, "#Ll") && fieldDefs[monthField].named(text) < 0: // JUL
		return p.dowExtension(text, pos)
	}

	e := element{lo: f.min, hi: f.top, step: 1}
	body, step, stepped := strings.Cut(text, "/")
	var err *SpecError
	switch {
	case body == "*" || body == "?":
		e.star = true
	case body == "":
		return fault(f.name, text, pos, fmt.Sprintf("%s %.40q has nothing in front of the step", f.name, text), f.what)
	case body[0] == '*' || body[0] == '?':
		return fault(f.name, body, pos, fmt.Sprintf("%s %.40q is not a star", f.name, body), "a star stands alone or before a step, as in */5")
	case body[0] == 'H' || body[0] == 'h':
	default:
		low, high, ranged := strings.Cut(body, "-")
		if e.lo, err = parseValue(i, low, body, pos); err != nil {
			return err
		}
		e.single = !ranged
		if ranged {
			if e.hi, err = parseValue(i, high, body, pos+len(low)+1); err != nil {
				return err
			}
			if e.lo > e.hi {
				return fault(f.name, body, pos, fmt.Sprintf("%s %.40s runs backwards", f.name, body), backwardsHint(i, low, high))
			}
		}
	}
	if stepped {
		e.stepped = true
		if e.step, err = parseStep(f, step, text, pos+len(body)+1); err != nil {
			return err
		}
		if i == dowField && e.single && e.lo == 7 {
			return fault(f.name, text, pos, fmt.Sprintf("day of week %.40s starts after the last day", text), "write 0/"+step+" to start on Sunday")
		}
	}
	if body[0] == 'H' || body[0] == 'h' {
		if err := p.hash(i, &e, body, pos); err != nil {
			return err
		}
	}
	if i <= hourField && (e.star || !e.single || e.stepped) {
		p.s.rhythm = true
	}
	p.emit(i, e)
	return nil
}

// An element is a checked element of a list: lo-hi/step, a star, or a single
// value, which with a step runs to the top of the field.
type element struct {
	lo, hi, step          int
	star, single, stepped bool
}

// emit writes an element in its canonical form and in the form for robfig,
// which knows no day of week 7.
func (p *parser) emit(i int, e element) {
	if p.listed[i] {
		p.plain = append(p.plain, ',')
	}
	p.listed[i] = true
	if i == dowField && e.single && e.lo == 7 {
		e.lo = 0
	}
	start := len(p.canonical)
	switch {
	case e.star:
		p.canonical = append(p.canonical, '*')
	case e.single:
		p.canonical = strconv.AppendInt(p.canonical, int64(e.lo), 10)
	default:
		p.canonical = strconv.AppendInt(p.canonical, int64(e.lo), 10)
		p.canonical = append(p.canonical, '-')
		p.canonical = strconv.AppendInt(p.canonical, int64(e.hi), 10)
	}
	if e.stepped {
		p.canonical = append(p.canonical, '/')
		p.canonical = strconv.AppendInt(p.canonical, int64(e.step), 10)
	}
	if i != dowField || e.single || e.hi < 7 {
		p.plain = append(p.plain, p.canonical[start:]...)
		return
	}
	for d := e.lo; d <= e.hi; d += e.step {
		if d > e.lo {
			p.plain = append(p.plain, ',')
		}
		p.plain = strconv.AppendInt(p.plain, int64(d%7), 10)
	}
}

// parseValue reads a number or a name. context is the whole element without its
// step, for errors.
func parseValue(i int, text, context string, pos int) (int, *SpecError) {
	f := &fieldDefs[i]
	if n, ok := number(text); ok {
		switch {
		case n > f.max:
			return 0, fault(f.name, text, pos, fmt.Sprintf("%s %.40s is above %d", f.name, text, f.max), f.what)
		case n < f.min:
			return 0, fault(f.name, text, pos, fmt.Sprintf("%s %.40s is below %d", f.name, text, f.min), f.what)
		}
		return n, nil
	}
	if n := f.named(text); n >= 0 {
		return n, nil
	}
	problem, hint := fmt.Sprintf("%s %.40q is not a number", f.name, text), f.what
	upper := strings.ToUpper(context)
	switch {
	case text == "" && len(context) > 1 && context[0] == '-':
		problem = fmt.Sprintf("%s %.40s is negative", f.name, context)
	case text == "":
		problem = fmt.Sprintf("%s %.40q is a range without an end", f.name, context)
	case strings.Count(context, "-") > 1:
		problem = fmt.Sprintf("%s %.40q is more than one range", f.name, context)
	case len(text) > 3 && f.named(text[:3]) >= 0:
		hint = "did you mean " + strings.ToUpper(text[:3]) + "?"
	case i != monthField && fieldDefs[monthField].named(text) >= 0:
		hint = text + " is a month"
	case i != dowField && fieldDefs[dowField].named(text) >= 0:
		hint = text + " is a day of week"
	case strings.Contains(upper, "#"):
		hint = "# belongs to the day of week; " + hint
	case strings.ContainsAny(upper, "LW"):
		hint = "L and W belong to the days; " + hint
	case strings.ContainsAny(text[:1], "0123456789"):
		problem = fmt.Sprintf("%s %.40q is not a whole number", f.name, text)
	}
	return 0, fault(f.name, text, pos, problem, hint)
}

// named returns the value of a three-letter name in any case, or -1.
func (f *fieldDef) named(text string) int {
	if len(text) == 3 {
		for i := 0; i < len(f.names); i += 3 {
			if strings.EqualFold(text, f.names[i:i+3]) {
				return f.min + i/3
			}
		}
	}
	return -1
}

func backwardsHint(i int, low, high string) string {
	f := &fieldDefs[i]
	if i == dowField && (high == "0" || strings.EqualFold(high, "SUN")) {
		return "a range ends on Sunday as 7"
	}
	return fmt.Sprintf("write %.20s-%d,%d-%.20s to go round", low, f.top, f.min, high)
}

// parseStep reads the number behind a slash. A step above the field's range would
// fire at the first value only, which is never what was meant.
func parseStep(f *fieldDef, text, context string, pos int) (int, *SpecError) {
	hint := fmt.Sprintf("a step of the %s is 1 to %d", f.name, f.max)
	n, ok := number(text)
	problem := ""
	switch {
	case text == "":
		problem = "has no step behind the slash"
	case strings.Contains(text, "/"):
		problem = "has two steps"
	case text[0] == '-':
		problem = "has a negative step"
	case !ok:
		problem = "has a step that is no number"
	case n == 0:
		problem = "has a step of zero"
	case n > f.max:
		problem = fmt.Sprintf("has a step above %d", f.max)
	default:
		return n, nil
	}
	return 0, fault(f.name, text, pos, fmt.Sprintf("%s %.40q %s", f.name, context, problem), hint)
}

// number reads decimal digits. Long ones come out as a large number.
func number(text string) (n int, ok bool) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int(c-'0'), 1e6)
	}
	return n, text != ""
}

// hash replaces H by a value or, with a step, by a range with a fixed start.
func (p *parser) hash(i int, e *element, body string, pos int) *SpecError {
	f := &fieldDefs[i]
	lo, hi := f.min, f.topH
	if len(body) > 1 {
		low, high, ok := strings.Cut(strings.TrimSuffix(body[1:], ")"), "-")
		if body[1] != '(' || !strings.HasSuffix(body, ")") || !ok {
			return fault(f.name, body, pos, fmt.Sprintf("%s %.40q is not understood", f.name, body), "write H, H(a-b), H/s or H(a-b)/s")
		}
		low = low[1:]
		var err *SpecError
		if lo, err = parseValue(i, low, low, pos+2); err != nil {
			return err
		}
		if hi, err = parseValue(i, high, high, pos+3+len(low)); err != nil {
			return err
		}
		if lo > hi {
			return fault(f.name, body, pos, fmt.Sprintf("%s %.40s runs backwards", f.name, body), f.what)
		}
	}
	if p.opts.Name == "" {
		return fault(f.name, body, pos, f.name+" H needs a name to hash", "set SpecOptions.Name, or write a number")
	}
	width := hi - lo + 1
	if e.stepped {
		if len(body) == 1 {
			hi = f.top // as H/10 in a day of month goes on to the 31st
		}
		e.lo, e.hi = lo+hashed(p.opts.Name, f.name, min(e.step, width)), hi
		return nil
	}
	e.single, e.lo = true, lo+hashed(p.opts.Name, f.name, width)
	return nil
}

// hashed spreads names over 0 to n-1: 64-bit FNV-1a of the name, a zero byte and
// the field's name as in errors, modulo n. Schedules rely on it: it must never
// change.
func hashed(name, field string, n int) int {
	h := uint64(14695981039346656037)
	for _, part := range []string{name, "\x00", field} {
		for i := range len(part) {
			h = (h ^ uint64(part[i])) * 1099511628211
		}
	}
	return int(h % uint64(n))
}

// domExtension reads L, L-n, LW and nW.
func (p *parser) domExtension(text string, pos int) *SpecError {
	const field, hint = "day of month", "L, L-n with n from 1 to 30, LW and nW with n from 1 to 31 are allowed"
	days := &p.s.days
	upper := strings.ToUpper(text)
	problem := "is not understood"
	switch {
	case upper == "L":
		days.fromLast |= 1
	case upper == "LW":
		days.lastWeekday = true
	case upper == "W":
		return fault(field, text, pos, "day of month W has no day", hint)
	case strings.HasPrefix(upper, "L-"):
		n, ok := number(upper[2:])
		if ok && n >= 1 && n <= 30 {
			days.fromLast |= 1 << n
			upper = "L-" + strconv.Itoa(n)
			break
		}
		if ok {
			problem = "is not 1 to 30 days before the last"
		}
		return fault(field, text, pos, fmt.Sprintf("day of month %.40q %s", text, problem), hint)
	case strings.HasSuffix(upper, "W"):
		n, ok := number(upper[:len(upper)-1])
		if ok && n >= 1 && n <= 31 {
			days.nearest |= 1 << n
			upper = strconv.Itoa(n) + "W"
			break
		}
		if ok {
			problem = "is not near a day from 1 to 31"
		} else if strings.Contains(upper, "-") {
			problem = "wants the weekday nearest to a range"
		}
		return fault(field, text, pos, fmt.Sprintf("day of month %.40q %s", text, problem), hint)
	default:
		return fault(field, text, pos, fmt.Sprintf("day of month %.40q %s", text, problem), hint)
	}
	p.canonical = append(p.canonical, upper...)
	return nil
}

// dowExtension reads d#n and dL.
func (p *parser) dowExtension(text string, pos int) *SpecError {
	const field, hint = "day of week", "d#n with n from 1 to 5 and dL are allowed, d being 0 to 7 or SUN to SAT"
	day, nth, counted := strings.Cut(text, "#")
	if last := len(text) - 1; !counted && text[last]|0x20 == 'l' {
		day = text[:last]
	}
	if day == "" {
		return fault(field, text, pos, fmt.Sprintf("day of week %.40q has no day", text), hint)
	}
	d, err := parseValue(dowField, day, day, pos)
	if err != nil {
		return err
	}
	d %= 7
	p.canonical = strconv.AppendInt(p.canonical, int64(d), 10)
	if !counted {
		p.s.days.lastDow |= 1 << d
		p.canonical = append(p.canonical, 'L')
		return nil
	}
	n, ok := number(nth)
	if !ok || n < 1 || n > 5 {
		return fault(field, text, pos, fmt.Sprintf("day of week %.40q does not say which one, 1 to 5", text), hint)
	}
	p.s.days.dow |= 1 << (7*(n-1) + d)
	p.canonical = append(p.canonical, '#', byte('0'+n))
	return nil
}

// descriptor reads text, which begins with an @.
func (p *parser) descriptor(text string, pos int) *SpecError {
	for _, d := range descriptors {
		if text == d.name {
			err := p.fields(d.fields, 0, false)
			p.s.text = d.canonical
			return err
		}
	}
	word := text[:blankIndex(text)]
	switch {
	case word == "@every":
		return p.interval(text, pos)
	case word == "@reboot":
		return fault("descriptor", word, pos, "@reboot is not a time", "enqueue the job when your program starts")
	}
	hint := "there are @yearly, @monthly, @weekly, @daily, @hourly and @every"
	if strings.HasPrefix(word, "@every") {
		hint = "write a blank behind @every"
	}
	for _, d := range descriptors {
		if word == d.name {
			hint = word + " stands alone"
		} else if distance(word, d.name) <= 2 {
			hint = "did you mean " + d.name + "?"
		}
	}
	return fault("descriptor", word, pos, fmt.Sprintf("unknown descriptor %.40q", text), hint)
}

// interval reads @every and its duration.
func (p *parser) interval(text string, pos int) *SpecError {
	const hint = "write a duration such as 90s, 5m or 1h30m, in whole seconds"
	at := skipBlanks(text, len("@every"))
	value := text[at:]
	problem := ""
	switch d, err := time.ParseDuration(value); {
	case value == "":
		problem = "has no duration"
	case err != nil:
		if _, ok := number(value); ok {
			problem = "has no unit"
		} else {
			problem = "is not a duration, or above 292 years"
		}
	case d == 0:
		problem = "would fire without end"
	case d < 0:
		problem = "is negative"
	case d < time.Second:
		problem = "is below one second"
	case d%time.Second != 0:
		problem = "is not in whole seconds"
	default:
		p.s.every = int64(d / time.Second)
		p.s.text = "@every " + d.String()
		return nil
	}
	return fault("@every", value, pos+at, strings.TrimSpace(fmt.Sprintf("@every %.40s", value))+" "+problem, hint)
}

// skipBlanks returns the first index at or after i that is no blank.
func skipBlanks(text string, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	return i
}

// blankIndex returns the index of the first blank, or the length of text.
func blankIndex(text string) int {
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		return i
	}
	return len(text)
}
