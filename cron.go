package rota

import (
	"iter"
	"math"
	"math/bits"
	"strings"
	"time"
)

// This file turns a parsed spec into instants. It is pure: it reads no clock,
// starts no goroutine and keeps no state, so the scheduler, previews and tests
// all get the same answer. How a text becomes a Spec is in cronparse.go.
//
// The search runs on the wall clock, counted in seconds since 1970-01-01
// 00:00:00 of the zone's own calendar ("wall"), and only then meets the zone's
// offsets. "instant" or "unix" always means seconds since the epoch in UTC.

const (
	daySeconds = 24 * 60 * 60

	// maxShift is above any jump that a zone's clock can make: RFC 8536 keeps
	// offsets between -25 and +26 hours. Changes further apart than this can't
	// influence one another; the closest in tzdata lie 95 hours apart.
	maxShift = 51 * 60 * 60

	// farAhead and landing let the search leap over years without a match: if
	// nothing matches for farAhead, it goes on landing before the match. Both
	// are above maxShift plus an offset.
	farAhead = 7 * daySeconds
	landing  = 4 * daySeconds

	// The Gregorian calendar repeats every 400 years, weekdays included. This
	// bounds the search for a day; the longest wait that there is, for a leap
	// day on a given weekday across 2100, is 40 years.
	calendarCycle = 400

	// maxUnix bounds the instants that Next and Prev work on, a thousand
	// million years either way, so that no sum below can overflow.
	maxUnix = 1 << 55

	forever = math.MaxInt64 // the end of a zone's last span
)

// A Spec says when something is due: a cron spec or an @every interval,
// together with its zone. ParseSpec makes one. It is an immutable value: copy
// it and share it between goroutines freely. The zero Spec never fires.
//
// A wall time that the spec names maps to instants as in Vixie's cron and in
// Cronos. If it exists once in the zone, that is the instant. If daylight
// saving (or any other change of the zone's offset) skips it, the first instant
// after the gap is, once for everything that fell into the gap. If it comes
// twice, a spec with a rhythm fires both times and one that names its times
// only the first time. A spec has a rhythm when its second, minute or hour
// field holds a star, a range or a step; the text decides, not the set of
// values that it stands for. See docs/cron.md.
type Spec struct {
	second, minute, hour uint64 // bit i stands for the value i
	days                 dayRule
	rhythm               bool // fires in both passes of a repeated hour

	every    int64 // seconds between two firings of @every; 0: a cron spec
	anchor   int64 // the instant that @every counts from, if anchored
	anchored bool

	loc      *time.Location // nil only in the zero Spec
	prefixed bool           // the text named its zone, so String does too
	text     string         // canonical, without the zone
}

// A Firing is one instant at which a Spec fires.
type Firing struct {
	At time.Time // in the spec's zone, whole seconds

	// Local is the wall time that the spec asked for, as 2006-01-02 15:04:05.
	// It differs from At where that wall time does not exist.
	Local string

	// Note says in plain English what a change of the zone's offset did to this
	// firing: "moved" to the end of a gap, "merged" with others there, "repeated"
	// in an overlap, or fired only "once" in one. It is empty for all others.
	Note string
}

// Next returns the first instant strictly later than after at which s fires, in
// the zone of s and with whole seconds. The fraction of a second in after
// counts. It is false if s never fires again, which happens only to the zero
// Spec and a thousand million years from now, since ParseSpec refuses specs
// that never fire.
//
// An @every spec fires at its anchor plus 1, 2, 3, ... intervals. Without one
// (see Anchored) Next is after, its fraction cut off, plus the interval.
func (s Spec) Next(after time.Time) (next time.Time, ok bool) {
	unix := after.Unix()
	if s.loc == nil || unix >= maxUnix {
		return time.Time{}, false
	}
	unix = max(unix, -maxUnix)
	switch {
	case s.every > 0 && !s.anchored:
		unix, ok = unix+s.every, true
	case s.every > 0:
		// In seconds, since 292 years of nanoseconds overflow.
		unix, ok = s.anchor+s.every*max(1, floorDiv(unix-s.anchor, s.every)+1), true
	case s.loc == time.UTC:
		unix, ok = s.nextWall(unix + 1)
	default:
		unix, ok = s.nextInZone(unix + 1)
	}
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(unix, 0).In(s.loc), true
}

// Prev returns the last instant strictly earlier than before at which s fires:
// for an instant t at which s fires, Prev(Next(t)) is t, and so is
// Next(Prev(t)). It is false if s never fired before: for the zero Spec, for an
// @every spec up to its first firing, and a thousand million years ago. For an
// @every spec without an anchor it is before, rounded up to a whole second,
// minus the interval.
func (s Spec) Prev(before time.Time) (prev time.Time, ok bool) {
	unix := before.Unix()
	if before.Nanosecond() == 0 {
		unix-- // else before.Unix() itself is earlier
	}
	if s.loc == nil || unix <= -maxUnix {
		return time.Time{}, false
	}
	unix = min(unix, maxUnix)
	switch {
	case s.every > 0 && !s.anchored:
		unix, ok = unix+1-s.every, true
	case s.every > 0:
		n := floorDiv(unix-s.anchor, s.every)
		unix, ok = s.anchor+n*s.every, n >= 1
	case s.loc == time.UTC:
		unix, ok = s.prevWall(unix)
	default:
		unix, ok = s.prevInZone(unix)
	}
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(unix, 0).In(s.loc), true
}

// Upcoming yields the firings strictly later than after, in order. There is no
// end to them: break out of the loop. It may be ranged over several times.
func (s Spec) Upcoming(after time.Time) iter.Seq[Firing] {
	return func(yield func(Firing) bool) {
		for at, ok := s.Next(after); ok; at, ok = s.Next(at) {
			if !yield(s.firing(at)) {
				return
			}
		}
	}
}

// Zone returns the zone in which s is read and in which Next answers; its
// String is the name. It is never nil: the zero Spec's is UTC.
func (s Spec) Zone() *time.Location {
	if s.loc == nil {
		return time.UTC
	}
	return s.loc
}

// Anchored returns a copy of an @every spec that fires at the given instant plus
// 1, 2, 3, ... intervals, so that restarts don't shift its phase. The fraction
// of a second in at is cut off. Other specs are returned unchanged.
func (s Spec) Anchored(at time.Time) Spec {
	if s.every > 0 {
		s.anchored, s.anchor = true, min(max(at.Unix(), -maxUnix), maxUnix)
	}
	return s
}

// String returns s as a canonical text: one space between fields, names, H and
// leading zeros resolved to numbers, ? as *, 7 as 0, durations as Go writes
// them. ParseSpec turns it into an equal spec when called with the same
// options. The zone stands in front unless it is UTC by default or Local, which
// ParseSpec takes only as an option. The anchor of @every is not part of it.
func (s Spec) String() string {
	if s.prefixed || s.Zone() != time.UTC && s.Zone() != time.Local {
		return "CRON_TZ=" + s.Zone().String() + " " + s.text
	}
	return s.text
}

// nextInZone returns the first firing at or after the instant u. It walks
// through the zone's spans of constant offset and asks in each for the next
// matching wall time, which is the answer if it lies in the span or in the gap
// behind it.
func (s *Spec) nextInZone(u int64) (int64, bool) {
	z := spanAt(s.loc, u)
	if u == z.start && s.inGap(&z) {
		return u, true
	}
	from := u + z.off
	for {
		if !s.rhythm {
			// Before this the last span has shown the same wall times already.
			from = max(from, z.start+z.prev)
		}
		wall, ok := s.nextWall(from)
		if !ok {
			return 0, false
		}
		if wall-z.off < z.end {
			return wall - z.off, true
		}
		// An overlap at the span's end shows wall times again, but none from
		// before end+off-maxShift. If nothing matches from there on, leap.
		if wall-z.off-z.end > farAhead {
			if near, _ := s.nextWall(z.end + z.off - maxShift); near-z.off-z.end > farAhead {
				u = near - landing
				z = spanAt(s.loc, u)
				from = u + z.off
				continue
			}
		}
		gap := z.end
		z.step(s.loc)
		if wall < gap+z.off {
			return gap, true
		}
		from = gap + z.off
	}
}

// prevInZone returns the last firing at or before the instant u.
func (s *Spec) prevInZone(u int64) (int64, bool) {
	for {
		z := spanAt(s.loc, u)
		first := z.start + z.off
		if !s.rhythm {
			first = max(first, z.start+z.prev)
		}
		wall, ok := s.prevWall(u + z.off)
		if !ok {
			return 0, false
		}
		if wall >= first {
			return wall - z.off, true
		}
		if z.prev < z.off && wall >= z.start+z.prev {
			return z.start, true
		}
		u = z.start
		if z.prev != z.off {
			u-- // a real change; otherwise only as far as spanAt looked
		}
		if near, _ := s.prevWall(u + z.off + maxShift); near < u-farAhead {
			u = near + landing
		}
	}
}

// inGap reports whether a wall time that was skipped at the start of z matches.
func (s *Spec) inGap(z *span) bool {
	wall, ok := s.nextWall(z.start + z.prev)
	return ok && wall < z.start+z.off
}

// A span is a stretch of time in which a zone's offset does not change.
type span struct {
	start, end int64 // instants, end excluded
	off        int64 // seconds east of UTC
	prev       int64 // the offset before start; off if there was no change
}

// spanAt returns the span around the instant u. Its start is true if it lies
// less than maxShift before u; otherwise there was no change in that time,
// start is u-maxShift, and prev equals off.
//
// It walks to u from before and never asks for the start of a span, because
// Time.ZoneBounds answers wrongly for the first span after a zone's last
// explicit transition (America/Metlakatla, 2019-01-20, with slim zone files).
func spanAt(loc *time.Location, u int64) span {
	z := span{start: u - maxShift}
	z.off, z.end = offsetAt(loc, z.start)
	z.prev = z.off
	for z.end <= u {
		z.step(loc)
	}
	return z
}

// step moves z on. If the offset stays, z only grows: Go's bounds are cut at
// the ends of years, and zones change their names without moving the clock.
func (z *span) step(loc *time.Location) {
	at := z.end
	off, end := offsetAt(loc, at)
	if off != z.off {
		z.start, z.prev, z.off = at, z.off, off
	}
	z.end = end
}

// offsetAt returns a zone's offset at an instant and a later instant up to
// which it is sure to stay the same.
func offsetAt(loc *time.Location, unix int64) (off, end int64) {
	t := time.Unix(unix, 0).In(loc)
	_, seconds := t.Zone()
	_, bound := t.ZoneBounds()
	switch {
	case bound.IsZero():
		end = forever
	case bound.Unix() <= unix:
		// On 31 December of leap years ZoneBounds says that the span ended
		// before it began (seen with Go 1.26.8): creep past the day.
		end = unix + 60*60
	default:
		end = bound.Unix()
	}
	return int64(seconds), end
}

// firing describes the instant at, at which s fires.
func (s *Spec) firing(at time.Time) Firing {
	const layout = "2006-01-02 15:04:05"
	f := Firing{At: at, Local: at.Format(layout)}
	if s.every > 0 || s.loc == time.UTC {
		return f
	}
	show := func(wall int64) string {
		return strings.TrimSuffix(time.Unix(wall, 0).UTC().Format("15:04:05"), ":00")
	}
	u := at.Unix()
	z := spanAt(s.loc, u)
	wall := u + z.off
	if u == z.start && s.inGap(&z) {
		missing, _ := s.nextWall(z.start + z.prev)
		another, _ := s.nextWall(missing + 1)
		f.Note = show(missing) + " does not exist, the clock goes from " +
			show(z.start+z.prev) + " to " + show(wall)
		switch own, _ := s.nextWall(wall); {
		case own == wall:
			f.Note = "merged: " + f.Note + ", so it fires together with the latter"
			return f
		case another < wall:
			f.Note = "moved and merged: " + f.Note + ", and so with others that fire together with it"
		default:
			f.Note = "moved: " + f.Note
		}
		f.Local = time.Unix(missing, 0).UTC().Format(layout)
		return f
	}
	if wall < z.start+z.prev {
		f.Note = "repeated: " + show(wall) + " comes twice, this is the second time"
		return f
	}
	for now := z.off; z.end <= u+maxShift && z.off == now; {
		z.step(s.loc)
	}
	if z.start > u && wall >= z.start+z.off {
		f.Note = "once: " + show(wall) + " comes twice, only the first time fires"
		if s.rhythm {
			f.Note = "repeated: " + show(wall) + " comes twice, this is the first time"
		}
	}
	return f
}

// nextWall returns the first matching wall time at or after from. It is false
// if no day matches in a whole cycle of the calendar.
func (s *Spec) nextWall(from int64) (int64, bool) {
	day := floorDiv(from, daySeconds)
	y, m, d := civil(day)
	if s.days.has(y, m, d) {
		if clock, ok := s.nextClock(int(from - day*daySeconds)); ok {
			return day*daySeconds + clock, true
		}
	}
	y, m, d, ok := s.days.next(y, m, d+1)
	if !ok {
		return 0, false
	}
	clock, _ := s.nextClock(0)
	return (daysBefore(y, m)+int64(d-1))*daySeconds + clock, true
}

// prevWall returns the last matching wall time at or before from.
func (s *Spec) prevWall(from int64) (int64, bool) {
	day := floorDiv(from, daySeconds)
	y, m, d := civil(day)
	if s.days.has(y, m, d) {
		if clock, ok := s.prevClock(int(from - day*daySeconds)); ok {
			return day*daySeconds + clock, true
		}
	}
	y, m, d, ok := s.days.prev(y, m, d-1)
	if !ok {
		return 0, false
	}
	clock, _ := s.prevClock(daySeconds - 1)
	return (daysBefore(y, m)+int64(d-1))*daySeconds + clock, true
}

// nextClock returns the first matching second of the day at or after from.
func (s *Spec) nextClock(from int) (int64, bool) {
	h, m, sec := from/3600, from/60%60, from%60
	if s.hour>>h&1 != 0 {
		if s.minute>>m&1 != 0 {
			if sec = lowest(s.second, sec); sec < 64 {
				return int64(h*3600 + m*60 + sec), true
			}
		}
		if m = lowest(s.minute, m+1); m < 64 {
			return int64(h*3600 + m*60 + lowest(s.second, 0)), true
		}
	}
	if h = lowest(s.hour, h+1); h < 64 {
		return int64(h*3600 + lowest(s.minute, 0)*60 + lowest(s.second, 0)), true
	}
	return 0, false
}

// prevClock returns the last matching second of the day at or before from.
func (s *Spec) prevClock(from int) (int64, bool) {
	h, m, sec := from/3600, from/60%60, from%60
	if s.hour>>h&1 != 0 {
		if s.minute>>m&1 != 0 {
			if sec = highest(s.second, sec); sec >= 0 {
				return int64(h*3600 + m*60 + sec), true
			}
		}
		if m = highest(s.minute, m-1); m >= 0 {
			return int64(h*3600 + m*60 + highest(s.second, 59)), true
		}
	}
	if h = highest(s.hour, h-1); h >= 0 {
		return int64(h*3600 + highest(s.minute, 59)*60 + highest(s.second, 59)), true
	}
	return 0, false
}

// A dayRule decides which dates of the nominal calendar match.
type dayRule struct {
	month uint64 // bits 1 to 12

	dom         uint64 // bits 1 to 31
	fromLast    uint32 // L-n: bit n; L is L-0
	nearest     uint32 // nW: bit n
	lastWeekday bool   // LW

	// Weekdays of the month, d#n: bit 7*(n-1)+d, where Sunday is 0 and n the
	// how-manieth of its kind. A plain weekday is all five of them.
	dow     uint64
	lastDow uint64 // dL: bit d

	// both: day of month and day of week must match. Otherwise either will do.
	both bool
}

// fiveWeeks, times a set of weekdays, is that set in each week of a month.
const fiveWeeks uint64 = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28

// mask returns the matching days of a month as bits 1 to 31.
func (r *dayRule) mask(y int64, m int) uint64 {
	first := int((daysBefore(y, m)%7 + 7 + 4) % 7) // 1970 began on a Thursday
	return r.maskOf(first, monthLength(y, m))
}

// maskOf is mask for a month by the weekday of its first day and its last day:
// nothing else matters.
func (r *dayRule) maskOf(first, last int) uint64 {
	all := uint64(1)<<(last+1) - 2

	dom := r.dom
	if r.fromLast != 0 {
		dom |= uint64(bits.Reverse32(r.fromLast)) >> (31 - last) // bit n becomes last-n
	}
	for rest := r.nearest & uint32(all); rest != 0; rest &= rest - 1 {
		dom |= 1 << nearestWeekday(bits.TrailingZeros32(rest), first, last)
	}
	if r.lastWeekday {
		// The last day's nearest weekday never lies after it.
		dom |= 1 << nearestWeekday(last, first, last)
	}

	dow := rotateWeek(r.dow, first) << 1
	if r.lastDow != 0 {
		dow |= rotateWeek(r.lastDow, (first+last)%7) & 0x7f << (last - 6) // the last seven days
	}

	if r.both {
		return dom & dow & all
	}
	return (dom | dow) & all
}

// rotateWeek turns sets of weekdays, seven bits each with Sunday as bit 0, so
// that the given weekday becomes bit 0 of each.
func rotateWeek(sets uint64, first int) uint64 {
	low := fiveWeeks * (0x7f >> first)
	high := fiveWeeks * (0x7f << (7 - first) & 0x7f)
	return sets>>first&low | sets<<(7-first)&high
}

// nearestWeekday returns the Monday to Friday nearest to day n of a month with
// the given first weekday and last day, without leaving the month.
func nearestWeekday(n, first, last int) int {
	switch weekday := (first + n - 1) % 7; {
	case weekday == 6 && n == 1:
		return 3
	case weekday == 6:
		return n - 1
	case weekday == 0 && n == last:
		return n - 2
	case weekday == 0:
		return n + 1
	}
	return n
}

// possible reports whether any date at all matches. In the course of 400 years
// every month begins with every weekday, February with either length.
func (r *dayRule) possible() bool {
	for m := lowest(r.month, 1); m <= 12; m = lowest(r.month, m+1) {
		for first := range 7 {
			if r.maskOf(first, monthLength(2000, m)) != 0 || r.maskOf(first, monthLength(2001, m)) != 0 {
				return true
			}
		}
	}
	return false
}

func (r *dayRule) has(y int64, m, d int) bool {
	return r.month>>m&1 != 0 && r.mask(y, m)>>d&1 != 0
}

// next returns the first matching date at or after the given one, whose day may
// be one too many for its month.
func (r *dayRule) next(y int64, m, d int) (int64, int, int, bool) {
	for limit := y + calendarCycle; y <= limit; {
		if r.month>>m&1 != 0 {
			if d := lowest(r.mask(y, m), d); d < 64 {
				return y, m, d, true
			}
		}
		d = 1
		if m = lowest(r.month, m+1); m > 12 {
			y, m = y+1, lowest(r.month, 1)
		}
	}
	return 0, 0, 0, false
}

// prev returns the last matching date at or before the given one, whose day may
// be 0.
func (r *dayRule) prev(y int64, m, d int) (int64, int, int, bool) {
	for limit := y - calendarCycle; y >= limit; {
		if r.month>>m&1 != 0 {
			if d := highest(r.mask(y, m), d); d >= 1 {
				return y, m, d, true
			}
		}
		d = 31
		if m = highest(r.month, m-1); m < 1 {
			y, m = y-1, highest(r.month, 12)
		}
	}
	return 0, 0, 0, false
}

// lowest returns the lowest bit of set at or above from, or 64.
func lowest(set uint64, from int) int {
	return bits.TrailingZeros64(set >> from << from)
}

// highest returns the highest bit of set at or below from, or -1. from may be -1.
func highest(set uint64, from int) int {
	return bits.Len64(set&(1<<(from+1)-1)) - 1
}

// civil returns the date of a day counted from 1970-01-01, and daysBefore the
// day of the first of a month, both in the proleptic Gregorian calendar. They
// are Howard Hinnant's algorithms ("chrono-compatible low-level date
// algorithms"): a year begins in March, so that the leap day is its last.
func civil(day int64) (y int64, m, d int) {
	day += 719468 // from 0000-03-01
	era := floorDiv(day, 146097)
	dayOfEra := day - era*146097
	yearOfEra := (dayOfEra - dayOfEra/1460 + dayOfEra/36524 - dayOfEra/146096) / 365
	dayOfYear := int(dayOfEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100))
	y = yearOfEra + era*400
	m = (5*dayOfYear + 2) / 153
	d = dayOfYear - (153*m+2)/5 + 1
	if m < 10 {
		return y, m + 3, d
	}
	return y + 1, m - 9, d
}

func daysBefore(y int64, m int) int64 {
	if m <= 2 {
		y, m = y-1, m+12
	}
	era := floorDiv(y, 400)
	yearOfEra := y - era*400
	dayOfYear := int64(153*(m-3)+2) / 5
	return era*146097 + yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear - 719468
}

func monthLength(y int64, m int) int {
	switch {
	case m != 2:
		return 30 + (m+m>>3)&1
	case y%4 == 0 && (y%100 != 0 || y%400 == 0):
		return 29
	}
	return 28
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
