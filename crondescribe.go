package rota

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Describe says in plain English when s fires, with its zone: "At 02:30 on
// weekdays, Europe/Berlin". The text is for people and may change between
// releases.
func (s Spec) Describe() string {
	switch {
	case s.loc == nil:
		return "Never"
	case s.anchored:
		anchor := time.Unix(s.anchor, 0).In(s.loc).Format("2006-01-02 15:04:05")
		return "Every " + s.interval() + ", counted from " + anchor + ", " + s.loc.String()
	case s.every > 0:
		return "Every " + s.interval() + ", " + s.loc.String()
	}
	text := s.describeClock()
	if days := s.days.describe(); days != "" {
		text += " " + days
	} else if strings.HasPrefix(text, "At ") && text[3] <= '9' {
		text += " every day"
	}
	return text + ", " + s.loc.String()
}

// interval is the text of an @every spec's duration without idle zeros: 1h30m.
func (s *Spec) interval() string {
	text := strings.TrimPrefix(s.text, "@every ")
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// describeClock names the times of day, one by one if they are few.
func (s *Spec) describeClock() string {
	const few = 6
	hours, minutes, seconds := values(s.hour), values(s.minute), values(s.second)
	if len(hours)*len(minutes)*len(seconds) <= few {
		var times []string
		for _, h := range hours {
			for _, m := range minutes {
				for _, sec := range seconds {
					text := fmt.Sprintf("%02d:%02d", h, m)
					if s.second != 1 {
						text += fmt.Sprintf(":%02d", sec)
					}
					times = append(times, text)
				}
			}
		}
		return "At " + join(times, "and")
	}

	text := ""
	if s.second != 1 {
		text = describeSet(seconds, 60, "second")
	}
	if step := stepOf(hours, 24); s.minute == 1 && text == "" && step > 0 {
		if step == 1 {
			return "Every hour"
		}
		return fmt.Sprintf("Every %d hours", step)
	}
	if text == "" {
		text = describeSet(minutes, 60, "minute")
	} else if len(minutes) < 60 {
		of := describeSet(minutes, 60, "minute")
		text += ", " + strings.ToLower(of[:1]) + of[1:]
	}
	switch step := stepOf(hours, 24); {
	case len(hours) == 24 && strings.Contains(text, "At minute"):
		text += " of every hour"
	case len(hours) == 24:
	case isRange(hours):
		text += fmt.Sprintf(" from %02d:00 to %02d:59", hours[0], hours[len(hours)-1])
	case step > 0:
		text += " of every " + ordinal(step) + " hour from 00:00 on"
	default:
		text += " of the hours " + join(format(hours, func(h int) string { return fmt.Sprintf("%02d", h) }), "and")
	}
	return text
}

// describeSet names a set of seconds or minutes.
func describeSet(set []int, size int, unit string) string {
	step := stepOf(set, size)
	switch {
	case step == 1:
		return "Every " + unit
	case len(set) == 1:
		return fmt.Sprintf("At %s %d", unit, set[0])
	case step > 0:
		return fmt.Sprintf("Every %d %ss", step, unit)
	case isRange(set):
		return fmt.Sprintf("Every %s from %d to %d", unit, set[0], set[len(set)-1])
	}
	return "At " + unit + "s " + join(format(set, strconv.Itoa), "and")
}

// describe names the days on which the rule matches; "" is every day.
func (r *dayRule) describe() string {
	dom, dow := r.describeDom(), r.describeDow()
	text := ""
	switch {
	case dom != "" && dow != "" && r.both:
		text = "on " + dom + " that is also " + dow
	case dom != "" && dow != "":
		text = "on " + dom + " or on " + dow
	case !r.both: // one of the two matches every day, and one is enough
	case dom != "":
		text = "on " + dom
	case dow != "":
		text = "on " + dow
	}
	months := values(r.month)
	if len(months) == 12 {
		return text
	}
	name := func(m int) string { return time.Month(m).String() }
	in := " in " + join(format(months, name), "and")
	if len(months) > 2 && isRange(months) {
		in = " from " + name(months[0]) + " to " + name(months[len(months)-1])
	}
	if text == "" {
		text = "every day"
	}
	return text + in
}

// describeDom names the days of the month; "" is all of them.
func (r *dayRule) describeDom() string {
	if r.dom == 1<<32-2 {
		return ""
	}
	var items []string
	if days := values(r.dom); len(days) > 2 && isRange(days) {
		items = append(items, "the "+ordinal(days[0])+" to "+ordinal(days[len(days)-1]))
	} else {
		items = format(days, func(d int) string { return "the " + ordinal(d) })
	}
	for _, n := range values(uint64(r.nearest)) {
		items = append(items, "the weekday nearest to the "+ordinal(n))
	}
	for _, n := range values(uint64(r.fromLast)) {
		switch n {
		case 0:
			items = append(items, "the last day")
		case 1:
			items = append(items, "the day before the last")
		default:
			items = append(items, fmt.Sprintf("the day %d days before the last", n))
		}
	}
	if r.lastWeekday {
		items = append(items, "the last weekday")
	}
	return join(items, "and") + " of the month"
}

// describeDow names the days of the week; "" is all of them.
func (r *dayRule) describeDow() string {
	const weekdays, weekend, week = 0x3e, 0x41, 0x7f
	plain := r.dow & week
	for n := range 5 {
		plain &= r.dow >> (7 * n)
	}
	var items []string
	switch plain {
	case week:
		return ""
	case weekdays:
		items = append(items, "weekdays")
	case weekend:
		items = append(items, "weekends")
	default:
		items = format(values(plain), func(d int) string { return time.Weekday(d).String() + "s" })
	}
	which := []string{"first", "second", "third", "fourth", "fifth"}
	for _, bit := range values(r.dow &^ (plain * fiveWeeks)) {
		items = append(items, "the "+which[bit/7]+" "+time.Weekday(bit%7).String()+" of the month")
	}
	for _, d := range values(r.lastDow) {
		items = append(items, "the last "+time.Weekday(d).String()+" of the month")
	}
	return join(items, "and")
}

// values lists the bits of a set.
func values(set uint64) []int {
	var list []int
	for ; set != 0; set &= set - 1 {
		list = append(list, bits.TrailingZeros64(set))
	}
	return list
}

func isRange(list []int) bool {
	return list[len(list)-1]-list[0] == len(list)-1
}

// stepOf returns n if the list is every nth of 0 to size-1 and n divides size,
// so that the rhythm goes on from one round to the next; else 0.
func stepOf(list []int, size int) int {
	if len(list) < 2 || list[0] != 0 || size%len(list) != 0 {
		return 0
	}
	step := size / len(list)
	for i, v := range list {
		if v != i*step {
			return 0
		}
	}
	return step
}

func format(list []int, text func(int) string) []string {
	var texts []string
	for _, v := range list {
		texts = append(texts, text(v))
	}
	return texts
}

// join makes an English list: a, b and c.
func join(items []string, word string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	last := len(items) - 1
	return strings.Join(items[:last], ", ") + " " + word + " " + items[last]
}

func ordinal(n int) string {
	suffix := "th"
	switch {
	case n/10 == 1:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return strconv.Itoa(n) + suffix
}
