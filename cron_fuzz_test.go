package rota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A reference is the rule of docs/cron.md once more, slow and without a trick:
// sets are maps, days are asked one by one, and a zone is looked at from
// outside, twice a day, for changes of its offset.
type reference struct {
	second, minute, hour, month map[int]bool
	dom, dow                    []string // elements, asked anew for each day
	both                        bool
	rhythm                      bool
	loc                         *time.Location
}

// newReference reads the fields of a spec that ParseSpec has accepted, without
// its zone and without H.
func newReference(text string, loc *time.Location) *reference {
	fields := strings.Fields(strings.ToUpper(text))
	if len(fields) == 5 {
		fields = append([]string{"0"}, fields...)
	}
	r := &reference{loc: loc}
	r.rhythm = strings.ContainsAny(fields[0]+fields[1]+fields[2], "*?-/")
	r.second = refSet(fields[0], 0, 59)
	r.minute = refSet(fields[1], 0, 59)
	r.hour = refSet(fields[2], 0, 23)
	r.month = refSet(fields[4], 1, 12)
	r.dom = strings.Split(fields[3], ",")
	r.dow = strings.Split(fields[5], ",")
	r.both = strings.ContainsAny(fields[3][:1]+fields[5][:1], "*?")
	return r
}

func refNumber(text string) int {
	if i := strings.Index("JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", text); i >= 0 && len(text) == 3 {
		return i/3 + 1
	}
	if i := strings.Index("SUNMONTUEWEDTHUFRISAT", text); i >= 0 && len(text) == 3 {
		return i / 3
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func refSet(field string, min, max int) map[int]bool {
	set := map[int]bool{}
	for _, element := range strings.Split(field, ",") {
		body, step, stepped := strings.Cut(element, "/")
		lo, hi, every := min, max, 1
		if stepped {
			every = refNumber(step)
		}
		if body != "*" && body != "?" {
			from, to, ranged := strings.Cut(body, "-")
			lo = refNumber(from)
			if ranged {
				hi = refNumber(to)
			} else if !stepped {
				hi = lo
			}
		}
		for v := lo; v <= hi; v += every {
			set[v] = true
		}
	}
	return set
}

// day reports whether a date of the nominal calendar matches.
func (r *reference) day(date time.Time) bool {
	if !r.month[int(date.Month())] {
		return false
	}
	last := time.Date(date.Year(), date.Month()+1, 0, 0, 0, 0, 0, time.UTC)
	dom := slices.ContainsFunc(r.dom, func(e string) bool { return refDom(e, date, last) })
	dow := slices.ContainsFunc(r.dow, func(e string) bool { return refDow(e, date, last) })
	if r.both {
		return dom && dow
	}
	return dom || dow
}

func refWeekend(t time.Time) bool {
	return t.Weekday() == time.Saturday || t.Weekday() == time.Sunday
}

func refDom(element string, date, last time.Time) bool {
	n, isW := strings.CutSuffix(element, "W")
	switch {
	case element == "L":
		return date.Day() == last.Day()
	case element == "LW":
		for refWeekend(last) {
			last = last.AddDate(0, 0, -1)
		}
		return date.Day() == last.Day()
	case strings.HasPrefix(element, "L-"):
		return date.Day() == last.Day()-refNumber(element[2:])
	case isW:
		day := refNumber(n)
		if day > last.Day() {
			return false
		}
		// The nearest of all weekdays of the month; no two are equally near.
		best, near := 0, 100
		for d := 1; d <= last.Day(); d++ {
			far := max(d-day, day-d)
			if !refWeekend(time.Date(date.Year(), date.Month(), d, 0, 0, 0, 0, time.UTC)) && far < near {
				best, near = d, far
			}
		}
		return date.Day() == best
	}
	return refSet(element, 1, 31)[date.Day()]
}

func refDow(element string, date, last time.Time) bool {
	weekday := int(date.Weekday())
	if day, nth, ok := strings.Cut(element, "#"); ok {
		return weekday == refNumber(day)%7 && (date.Day()+6)/7 == refNumber(nth)
	}
	if day, ok := strings.CutSuffix(element, "L"); ok {
		return weekday == refNumber(day)%7 && date.Day()+7 > last.Day()
	}
	set := refSet(element, 0, 6)
	return set[weekday] || weekday == 0 && set[7]
}

type refSpan struct{ start, end, off int64 }

// refSpans finds the spans of constant offset that touch from..to.
func refSpans(loc *time.Location, from, to int64) []refSpan {
	offset := func(u int64) int64 {
		_, off := time.Unix(u, 0).In(loc).Zone()
		return int64(off)
	}
	const look = 12 * 60 * 60
	spans := []refSpan{{from, from, offset(from)}}
	for u := from; u <= to; u += look {
		last := &spans[len(spans)-1]
		if off := offset(u + look); off != last.off {
			a, b := u, u+look
			for b-a > 1 {
				if m := (a + b) / 2; offset(m) == last.off {
					a = m
				} else {
					b = m
				}
			}
			last.end = b
			spans = append(spans, refSpan{b, b, off})
		}
	}
	spans[len(spans)-1].end = to + look
	return spans
}

// instants maps a wall time to the instants at which it fires.
func (r *reference) instants(wall int64, spans []refSpan) []int64 {
	var all []int64
	for _, s := range spans {
		if u := wall - s.off; u >= s.start && u < s.end {
			all = append(all, u)
		}
	}
	switch {
	case len(all) == 0: // the first instant at which the clock shows more
		for _, s := range spans {
			if u := max(s.start, wall+1-s.off); u < s.end {
				return []int64{u}
			}
		}
	case !r.rhythm:
		return all[:1]
	}
	return all
}

// first returns the first firing after the instant after and up to limit, or
// limit+1.
func (r *reference) first(after, limit int64) int64 {
	const margin = 60 * 60 * 60
	spans := refSpans(r.loc, after-margin, limit+margin)
	low, high := spans[0].off, spans[0].off
	for _, s := range spans {
		low, high = min(low, s.off), max(high, s.off)
	}
	best := limit + 1
	from, to := after+low-1, limit+high+1
	day := time.Unix(from, 0).UTC().Truncate(24 * time.Hour)
	for ; day.Unix() <= to; day = day.AddDate(0, 0, 1) {
		if !r.day(day) {
			continue
		}
		for h := range r.hour {
			for m := range r.minute {
				start := day.Unix() + int64(h*3600+m*60)
				if start+59 < from || start > to {
					continue
				}
				for s := range r.second {
					if wall := start + int64(s); wall >= from && wall <= to {
						for _, u := range r.instants(wall, spans) {
							if u > after {
								best = min(best, u)
							}
						}
					}
				}
			}
		}
	}
	return best
}

// checkNext holds a spec to its promises for one instant. ref may be nil.
func checkNext(t *testing.T, s Spec, ref *reference, after time.Time) {
	t.Helper()
	next, ok := s.Next(after)
	if !ok {
		t.Fatalf("%s never fires after %v", s, after)
	}
	if !next.After(after) || next.Nanosecond() != 0 || next.Location() != s.Zone() {
		t.Fatalf("%s: Next(%v) = %v: not later, or a fraction, or another zone", s, after, next)
	}
	if ref != nil {
		if want := ref.first(after.Unix(), next.Unix()); want != next.Unix() {
			t.Fatalf("%s: Next(%v) = %v, the reference says %v", s, after.In(s.Zone()), next, time.Unix(want, 0).In(s.Zone()))
		}
	}
	if again, _ := s.Next(next.Add(-1)); !again.Equal(next) {
		t.Fatalf("%s: Next just before %v is %v", s, next, again)
	}
	if prev, ok := s.Prev(next.Add(1)); !ok || !prev.Equal(next) {
		t.Fatalf("%s: Prev just after %v is %v, %v", s, next, prev, ok)
	}
	prev, ok := s.Prev(next)
	if !ok || prev.After(after) {
		t.Fatalf("%s: Prev(%v) = %v, %v, but Next(%v) is the former", s, next, prev, ok, after)
	}
	if again, _ := s.Next(prev); !again.Equal(next) {
		t.Fatalf("%s: Next(Prev(%v)) = Next(%v) = %v", s, next, prev, again)
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, spec := range []string{
		"* * * * *", "*/15 9-17 * * MON-FRI", "30 2 L-3,15W,LW 2,FEB 5#2,5L", "TZ=Europe/Berlin 0 0 29 2 *",
		"CRON_TZ=Asia/Tokyo\t@hourly", "@every 1h30m", "@yearly", "H H(0-5) H/3 * 7", "0 0 0 ? * 5-7/2", "0, * * * *",
		"TZ=UTC", "@every -1s", "* * * * 0-7/3", "1,2,*/7 ?/3 1-1 jan-dec/11 sun",
	} {
		f.Add(spec, false)
		f.Add("0 "+spec, true)
	}
	after := time.Date(2024, 3, 10, 6, 59, 59, 5, time.UTC)
	f.Fuzz(func(t *testing.T, text string, seconds bool) {
		opts := SpecOptions{Zone: "America/New_York", Seconds: seconds, Name: "name"}
		s, err := ParseSpec(text, opts)
		if err != nil {
			var e *SpecError
			if !errors.As(err, &e) || !errors.Is(err, ErrSpec) || e.Spec != text || e.Field == "" || e.Problem == "" ||
				len(err.Error()) > 1000 || e.Pos < 0 || e.Pos > len(text)+1 {
				t.Fatalf("%q: %#v", text, err)
			}
			if e.Pos > 0 && !strings.HasPrefix(text[e.Pos-1:], e.Value) {
				t.Fatalf("%q: %q is not at %d", text, e.Value, e.Pos)
			}
			return
		}
		again, err := ParseSpec(s.String(), opts)
		if err != nil || again.String() != s.String() || again.Describe() != s.Describe() {
			t.Fatalf("%q: as text %q, and that is %q, %v", text, s, again, err)
		}
		if s.every == 0 {
			// Only the form without names, H and 7 as a number goes to the
			// reference: it is what String promises to be equal.
			var ref *reference
			if next, _ := s.Next(after); next.Sub(after) < 9*365*24*time.Hour && !strings.HasPrefix(s.text, "@") {
				ref = newReference(s.text, s.loc)
			}
			checkNext(t, s, ref, after)
			checkNext(t, again, nil, after)
		}
	})
}

// fuzzZones have changes of all kinds: 30 minutes, 24 hours, at midnight, of
// the standard offset, twice a year around Ramadan, below a minute, and three
// whose first span under the last rule Go reports with a wrong start.
var fuzzZones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo",
	"Africa/Casablanca", "Africa/Cairo", "Asia/Gaza", "Asia/Pyongyang", "America/Caracas", "Pacific/Kwajalein",
	"Africa/Monrovia", "America/Metlakatla", "America/Ciudad_Juarez", "America/Indiana/Winamac", "America/St_Johns",
	"Antarctica/Troll", "Europe/Dublin", "Asia/Kathmandu", "America/Scoresbysund", "Asia/Manila", "Antarctica/Casey",
	"America/Havana", "Pacific/Norfolk", "Pacific/Chatham", "Africa/Freetown", "America/Juneau", "Asia/Tehran", "Etc/GMT+12",
}

// randomSpec makes a valid spec, and mostly one that fires soon.
func randomSpec(r *rand.Rand) (text string, seconds bool) {
	pick := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	element := func(lo, hi int) string {
		a, b := lo+r.IntN(hi-lo+1), lo+r.IntN(hi-lo+1)
		switch r.IntN(8) {
		case 0:
			return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
		case 1:
			return fmt.Sprintf("%d-%d/%d", min(a, b), max(a, b), 1+r.IntN(hi))
		case 2:
			return fmt.Sprintf("%s/%d", pick("*", "?"), 1+r.IntN(hi))
		case 3:
			return fmt.Sprintf("%d/%d", a, 1+r.IntN(hi))
		case 4:
			return fmt.Sprintf("%02d", a)
		case 5, 6:
			return strconv.Itoa(a)
		}
		return "*"
	}
	list := func(f func() string) string {
		text := f()
		for r.IntN(3) == 0 {
			text += "," + f()
		}
		return text
	}
	clock := func(max int) string { return list(func() string { return element(0, max) }) }
	dom, month, dow := "*", "*", "*"
	if r.IntN(3) == 0 {
		dom = list(func() string {
			return pick("L", "LW", fmt.Sprint("L-", 1+r.IntN(30)), fmt.Sprint(1+r.IntN(31), "W"), element(1, 31), element(1, 31))
		})
	}
	if r.IntN(5) == 0 {
		month = list(func() string { return pick(element(1, 12), element(1, 12), "feb", "OCT-NOV") })
	}
	if r.IntN(3) == 0 {
		dow = list(func() string {
			return pick(fmt.Sprint(r.IntN(8), "#", 1+r.IntN(5)), fmt.Sprint(r.IntN(8), "L"), element(0, 6), "MON-7", "4-7/2", "sun")
		})
	}
	minute, hour := clock(59), clock(23)
	if r.IntN(2) == 0 { // aim at the hours in which clocks change
		hour = pick("0", "1", "2", "3", "0-3", "0,1,2,3", "*/2", "*", "23")
	}
	text = strings.Join([]string{minute, hour, dom, month, dow}, " ")
	if r.IntN(4) == 0 {
		return clock(59) + " " + text, true
	}
	return text, false
}

func FuzzNext(f *testing.F) {
	zones := make([]*time.Location, len(fuzzZones))
	for i, name := range fuzzZones {
		loc, err := time.LoadLocation(name)
		if err != nil {
			f.Fatal(err)
		}
		zones[i] = loc
		f.Add(uint64(i), uint8(i), int64(1700000000), uint32(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64, zone uint8, unix int64, nano uint32) {
		r := rand.New(rand.NewPCG(seed, 0))
		text, seconds := randomSpec(r)
		i := int(zone) % len(zones)
		s, err := ParseSpec(text, SpecOptions{Seconds: seconds})
		if err != nil {
			if strings.Contains(err.Error(), "never fires") {
				return
			}
			t.Fatal(err)
		}
		s.loc = zones[i] // as resolved before: loading it anew would be most of the work
		from := int64(-5e9) + int64(uint64(unix)%16e9)
		if r.IntN(4) > 0 {
			// Most bugs live close to a change of the offset.
			if _, end := time.Unix(from, 0).In(s.loc).ZoneBounds(); !end.IsZero() {
				from = end.Unix() + int64(r.IntN(200_000)) - 100_000
			}
		}
		after := time.Unix(from, int64(nano)%1e9)
		if r.IntN(100) == 0 { // the same zone, loaded twice, is the same
			again, err := ParseSpec("TZ="+fuzzZones[i]+" "+text, SpecOptions{Seconds: seconds})
			a, _ := s.Next(after)
			if b, _ := again.Next(after); err != nil || !a.Equal(b) {
				t.Fatalf("%s: Next(%v) = %v, and %v with the zone in the text (%v)", s, after, a, b, err)
			}
		}
		ref := newReference(text, s.loc)
		for range 3 {
			checkNext(t, s, ref, after)
			after, _ = s.Next(after)
		}
	})
}
