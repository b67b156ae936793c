package rota

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata"
)

// mustParse parses a spec in a zone, or ends the test.
func mustParse(t testing.TB, spec, zone string) Spec {
	t.Helper()
	s, err := ParseSpec(spec, SpecOptions{Zone: zone})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustTime(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// take returns the first n instants after from, as RFC 3339.
func take(s Spec, from time.Time, n int) []string {
	var got []string
	for f := range s.Upcoming(from) {
		if n--; n < 0 {
			break
		}
		got = append(got, f.At.Format(time.RFC3339))
	}
	return got
}

// wantFirings checks that s fires after from at the instants in want, which are
// parted by blanks, and that Prev finds each of them again.
func wantFirings(t *testing.T, s Spec, from, want string) {
	t.Helper()
	instants := strings.Fields(want)
	got := take(s, mustTime(t, from), len(instants))
	if strings.Join(got, " ") != strings.Join(instants, " ") {
		t.Errorf("%s from %s:\n got %s\nwant %s", s, from, strings.Join(got, " "), want)
	}
	for i := 1; i < len(got); i++ {
		prev, ok := s.Prev(mustTime(t, got[i]))
		if !ok || prev.Format(time.RFC3339) != got[i-1] {
			t.Errorf("%s: Prev(%s) = %v, %v, want %s", s, got[i], prev, ok, got[i-1])
		}
	}
}

func TestSpecVectors(t *testing.T) {
	file, err := os.Open("testdata/cron-vectors.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1480 {
		t.Errorf("%d rows, want 1479 and a header", len(rows))
	}
	for _, row := range rows[1:] {
		id, spec, zone, from, next := row[0], row[2], row[4], row[5], row[6]
		s, err := ParseSpec(spec, SpecOptions{Zone: zone, Seconds: row[3] == "1"})
		if next == "none" {
			if err == nil || !strings.Contains(err.Error(), "never fires") {
				t.Errorf("%s %s: error %v, want that it never fires", id, spec, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		want := strings.Split(strings.ReplaceAll(next, "+00:00", "Z"), "|")
		got := take(s, mustTime(t, from), len(want))
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("%s %s %s from %s (%s)\n got %s\nwant %s", id, spec, zone, from, row[7], got, want)
		}
		again, err := ParseSpec(s.String(), SpecOptions{Seconds: row[3] == "1"})
		if err != nil || again.String() != s.String() || strings.Join(take(again, mustTime(t, from), len(want)), "|") != strings.Join(got, "|") {
			t.Errorf("%s %s: String gives %q, which is not the same (%v)", id, spec, s, err)
		}
		for i := 1; i < len(want); i++ {
			if prev, ok := s.Prev(mustTime(t, got[i])); !ok || prev.Format(time.RFC3339) != got[i-1] {
				t.Errorf("%s %s: Prev(%s) = %v, %v, want %s", id, spec, got[i], prev, ok, got[i-1])
			}
		}
	}
}

// faultFields maps the first words of the faults in cron-bad.txt that don't name
// a field to SpecError.Field.
var faultFields = map[string]string{
	"empty":                       "spec",
	"number of fields":            "spec",
	"never fires":                 "spec",
	"spec missing after the zone": "spec",
	"unknown descriptor":          "descriptor",
	"descriptor refused":          "descriptor",
}

func TestSpecRefusals(t *testing.T) {
	file, err := os.Open("testdata/cron-bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") || lines.Text() == "" {
			continue
		}
		quoted, fault, _ := strings.Cut(lines.Text(), "\t")
		var spec string
		if err := json.Unmarshal([]byte(quoted), &spec); err != nil {
			t.Fatalf("%s: %v", quoted, err)
		}
		_, err := ParseSpec(spec, SpecOptions{})
		var e *SpecError
		if !errors.As(err, &e) || !errors.Is(err, ErrSpec) {
			t.Errorf("%q: error %v, want a SpecError: %s", spec, err, fault)
			continue
		}
		field, _, _ := strings.Cut(fault, ":")
		if f, ok := faultFields[field]; ok {
			field = f
		}
		if e.Field != field || e.Spec != spec || e.Problem == "" {
			t.Errorf("%q: field %q, want %q: %v", spec, e.Field, field, err)
		}
		if e.Pos > 0 && !strings.HasPrefix(spec[e.Pos-1:], e.Value) {
			t.Errorf("%q: value %q is not at %d", spec, e.Value, e.Pos)
		}
		t.Logf("%v", err)
	}
}

func TestSpecRefusesOversizedAndStrayBytes(t *testing.T) {
	var specs []string
	for b := range 256 {
		specs = append(specs, string([]byte{byte(b)}), string([]byte{'*', byte(b), ' ', '*', ' ', '*', ' ', '*', ' ', '*'}))
	}
	for _, unit := range []string{"*", ",", "1,", "* ", "/", "-", "TZ=", "@every ", "1#"} {
		specs = append(specs, strings.Repeat(unit, 10_000/len(unit)), strings.Repeat(unit, 900/len(unit)))
	}
	for _, spec := range specs {
		if len(strings.Fields(spec)) == 5 && strings.Trim(spec, "* \t") == "" {
			continue // the stray byte was a blank
		}
		if _, err := ParseSpec(spec, SpecOptions{Name: "n"}); !errors.Is(err, ErrSpec) {
			t.Errorf("%.40q: %v", spec, err)
		}
	}
}

func TestSpecErrorsSayWhatIsMeant(t *testing.T) {
	tests := []struct {
		spec string
		opts SpecOptions
		want string
	}{
		{"61 * * * *", SpecOptions{}, `spec "61 * * * *" at column 1: minute 61 is above 59; a minute is 0 to 59`},
		{"0 3 * * 1-9", SpecOptions{}, "at column 11: day of week 9 is above 7"},
		{"* * * *", SpecOptions{}, "four fields, a cron spec has five"},
		{"* * * * *", SpecOptions{Seconds: true}, "five fields, a cron spec has six; this one has the second in front: put a 0 there"},
		{"0 * * * * *", SpecOptions{}, "a second in front must be asked for"},
		{"tz=UTC * * * * *", SpecOptions{}, "CRON_TZ=Europe/Berlin"},
		{"@dayly", SpecOptions{}, "did you mean @daily?"},
		{"@every5m", SpecOptions{}, "write a blank behind @every"},
		{"@reboot", SpecOptions{}, "when your program starts"},
		{"* * * JANUARY *", SpecOptions{}, "did you mean JAN?"},
		{"* * * MON *", SpecOptions{}, "MON is a day of week"},
		{"0 22-5 * * *", SpecOptions{}, "write 22-23,0-5"},
		{"* * * * MON-SUN", SpecOptions{}, "a range ends on Sunday as 7"},
		{"* * * * 7/2", SpecOptions{}, "write 0/2"},
		{"*/90 * * * *", SpecOptions{}, "a step of the minute is 1 to 59"},
		{"* * * * JUL", SpecOptions{}, "JUL is a month"},
		{"* * * * 5L/2", SpecOptions{}, `day of week "5L/2"`},
		{"0 0 30 2 *", SpecOptions{}, "never fires: no date has the day of month, month and day of week of 0 0 30 2 *"},
		{"H * * * *", SpecOptions{}, "minute H needs a name"},
		{"0 3 * * *", SpecOptions{Zone: "europe/berlin"}, "did you mean Europe/Berlin?"},
		{"0 3 * * *", SpecOptions{Zone: "Europe/Berlni"}, "did you mean Europe/Berlin?"},
		{"0 3 * * *", SpecOptions{Zone: "Tokyo"}, "did you mean Asia/Tokyo?"},
		{"TZ=localtime 0 3 * * *", SpecOptions{}, "depends on the machine"},
		{"TZ=right/UTC 0 3 * * *", SpecOptions{}, "not a zone's name"},
		{"0 3 * * *", SpecOptions{Zone: " "}, "not a zone's name"},
	}
	for _, test := range tests {
		_, err := ParseSpec(test.spec, test.opts)
		if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q %+v: error\n%v, want\n%s", test.spec, test.opts, err, test.want)
		}
	}
}

func TestSpecWithoutZoneData(t *testing.T) {
	if hint := zoneHint("Europe/Berlin"); !strings.Contains(hint, "import time/tzdata") {
		t.Errorf("hint for a zone that exists elsewhere: %s", hint)
	}
}

// The table of docs/cron.md.
func TestSpecRuleTable(t *testing.T) {
	const newYork = "America/New_York"
	tests := []struct{ spec, zone, from, want string }{
		{"30 2 * * *", newYork, "2024-03-10T00:00:00-05:00", "2024-03-10T03:00:00-04:00 2024-03-11T02:30:00-04:00"},
		{"0,30 2,3 * * *", newYork, "2024-03-10T00:00:00-05:00", "2024-03-10T03:00:00-04:00 2024-03-10T03:30:00-04:00 2024-03-11T02:00:00-04:00"},
		{"30 * * * *", newYork, "2024-03-10T01:00:00-05:00", "2024-03-10T01:30:00-05:00 2024-03-10T03:00:00-04:00 2024-03-10T03:30:00-04:00"},
		{"0 */2 * * *", newYork, "2024-03-10T00:00:00-05:00", "2024-03-10T03:00:00-04:00 2024-03-10T04:00:00-04:00"},
		{"30 1 * * *", newYork, "2024-11-03T00:00:00-04:00", "2024-11-03T01:30:00-04:00 2024-11-04T01:30:00-05:00"},
		{"30 1-1 * * *", newYork, "2024-11-03T00:00:00-04:00", "2024-11-03T01:30:00-04:00 2024-11-03T01:30:00-05:00"},
		{"@daily", "America/Sao_Paulo", "2017-10-14T12:00:00-03:00", "2017-10-15T01:00:00-02:00 2017-10-16T00:00:00-02:00"},
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-28T00:00:00-10:00", "2011-12-31T00:00:00+14:00 2012-12-30T12:00:00+14:00"},
		{"15 2 * * *", "Australia/Lord_Howe", "2024-10-05T12:00:00+10:30", "2024-10-06T02:30:00+11:00"},
		{"20 0 * * *", "Africa/Monrovia", "1972-01-06T12:00:00Z", "1972-01-07T00:44:30Z 1972-01-08T00:20:00Z"},
		{"0 0 29 2 *", "Europe/Berlin", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00+01:00"},
		{"0 0 29 2 */7", "UTC", "2088-03-01T00:00:00Z", "2128-02-29T00:00:00Z"}, // the longest wait there is
		{"0 0 * * 1", "Pacific/Apia", "2011-12-20T00:00:00-10:00", "2011-12-26T00:00:00-10:00 2012-01-02T00:00:00+14:00"},
		{"0 12 21 8 *", "Pacific/Kwajalein", "1993-08-19T00:00:00-12:00", "1993-08-22T00:00:00+12:00"},
	}
	for _, test := range tests {
		wantFirings(t, mustParse(t, test.spec, test.zone), test.from, test.want)
	}
}

// Go reports a wrong start for the first span under a zone's last rule: these
// are the zones in which that matters.
func TestSpecFirstSpanOfLastRule(t *testing.T) {
	wantFirings(t, mustParse(t, "30 1 * * *", "America/Metlakatla"), "2019-01-20T00:00:00-08:00",
		"2019-01-20T01:30:00-08:00 2019-01-21T01:30:00-09:00")
	wantFirings(t, mustParse(t, "30 1-1 * * *", "America/Metlakatla"), "2019-01-20T00:00:00-08:00",
		"2019-01-20T01:30:00-08:00 2019-01-20T01:30:00-09:00 2019-01-21T01:30:00-09:00")
	wantFirings(t, mustParse(t, "30 2 * * *", "America/Indiana/Winamac"), "2007-03-10T12:00:00-06:00",
		"2007-03-11T04:00:00-04:00 2007-03-12T02:30:00-04:00")
	wantFirings(t, mustParse(t, "30 23 * * *", "America/Ciudad_Juarez"), "2022-11-29T22:00:00-06:00",
		"2022-11-29T23:30:00-06:00 2022-11-30T23:30:00-07:00")
}

func TestSpecEvery(t *testing.T) {
	s := mustParse(t, "@every 90m", "Europe/Berlin")
	wantFirings(t, s, "2024-03-31T00:00:00.75+01:00", "2024-03-31T01:30:00+01:00 2024-03-31T04:00:00+02:00")

	anchor := mustTime(t, "2024-01-01T00:00:10.9Z")
	a := s.Anchored(anchor)
	wantFirings(t, a, "2023-01-01T00:00:00Z", "2024-01-01T02:30:10+01:00 2024-01-01T04:00:10+01:00")
	wantFirings(t, a, "2024-01-01T01:30:10Z", "2024-01-01T04:00:10+01:00")
	wantFirings(t, a, "2024-01-01T01:30:09.999Z", "2024-01-01T02:30:10+01:00")
	if prev, ok := a.Prev(mustTime(t, "2024-01-01T01:30:10Z")); ok {
		t.Errorf("fires before the first firing, at %v", prev)
	}
	if prev, _ := a.Prev(mustTime(t, "2024-01-01T01:30:10.001Z")); prev.Unix() != anchor.Unix()+90*60 {
		t.Errorf("Prev just after the first firing is %v", prev)
	}
	if got := s.Anchored(anchor).Anchored(anchor); got != a || s.anchored {
		t.Error("Anchored is not idempotent, or changed its receiver")
	}
	if cron := mustParse(t, "0 3 * * *", "UTC"); cron.Anchored(anchor) != cron {
		t.Error("Anchored changed a cron spec")
	}

	// 292 years of interval, asked far beyond them.
	long := mustParse(t, "@every 2562047h47m16s", "UTC").Anchored(time.Unix(0, 0))
	next, ok := long.Next(time.Unix(40_000_000_000, 0))
	if want := int64(5 * 9223372036); !ok || next.Unix() != want {
		t.Errorf("Next = %d, want %d", next.Unix(), want)
	}
}

func TestSpecHash(t *testing.T) {
	// These values are a promise: schedules keep their minute for ever.
	for name, want := range map[string]string{
		"backup": "33 37 23 25 6 6", "invoices": "31 3 21 23 8 5", "Ünïcode ☂": "57 37 3 17 10 2",
	} {
		s, err := ParseSpec("H H H H H H", SpecOptions{Name: name, Seconds: true})
		if err != nil || s.String() != want {
			t.Errorf("H of %q is %q, want %q (%v)", name, s, want, err)
		}
	}
	h := fnv.New64a()
	h.Write([]byte("backup\x00day of week"))
	if got, want := hashed("backup", "day of week", 7), int(h.Sum64()%7); got != want {
		t.Errorf("hash %d, hash/fnv says %d", got, want)
	}

	// A hundred nightly jobs don't start in one minute.
	counts := map[string]int{}
	for i := range 100 {
		s, err := ParseSpec("H H(0-5) * * *", SpecOptions{Name: "nightly-" + string(rune('a'+i%26)) + string(rune('0'+i/26))})
		if err != nil {
			t.Fatal(err)
		}
		if len(values(s.hour)) != 1 || s.hour >= 1<<6 || s.rhythm {
			t.Errorf("H(0-5) is %b", s.hour)
		}
		counts[s.String()]++
		if counts[s.String()] > 4 {
			t.Errorf("%d of 100 jobs at %s", counts[s.String()], s)
		}
	}

	s, err := ParseSpec("H/15 H(8-17)/3 H/10 * *", SpecOptions{Name: "x"})
	if err != nil || len(values(s.minute)) != 4 || len(values(s.hour)) < 3 || len(values(s.days.dom)) < 3 || !s.rhythm {
		t.Errorf("%s, %v", s, err)
	}
	again, err := ParseSpec(s.String(), SpecOptions{})
	if err != nil || again != s {
		t.Errorf("%s is not %s (%v)", again, s, err)
	}
}

func TestSpecNotes(t *testing.T) {
	tests := []struct{ spec, zone, from, local, note string }{
		{"30 2 * * *", "Europe/Berlin", "2024-03-31T00:00:00Z", "2024-03-31 02:30:00",
			"moved: 02:30 does not exist, the clock goes from 02:00 to 03:00"},
		{"0,30 2,4 * * *", "Europe/Berlin", "2024-03-31T00:00:00Z", "2024-03-31 02:00:00",
			"moved and merged: 02:00 does not exist, the clock goes from 02:00 to 03:00, and so with others that fire together with it"},
		{"30 * * * *", "Australia/Lord_Howe", "2024-10-05T15:10:00Z", "2024-10-06 02:30:00", ""},
		{"*/15 * * * *", "Australia/Lord_Howe", "2024-10-05T15:20:00Z", "2024-10-06 02:30:00",
			"merged: 02:00 does not exist, the clock goes from 02:00 to 02:30, so it fires together with the latter"},
		{"30 2 * * *", "Europe/Berlin", "2024-10-27T00:00:00Z", "2024-10-27 02:30:00",
			"once: 02:30 comes twice, only the first time fires"},
		{"30 * * * *", "Europe/Berlin", "2024-10-27T00:00:00Z", "2024-10-27 02:30:00",
			"repeated: 02:30 comes twice, this is the first time"},
		{"30 * * * *", "Europe/Berlin", "2024-10-27T01:00:00Z", "2024-10-27 02:30:00",
			"repeated: 02:30 comes twice, this is the second time"},
		{"30 * * * *", "Europe/Berlin", "2024-10-27T02:00:00Z", "2024-10-27 03:30:00", ""},
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-29T00:00:00Z", "2011-12-30 12:00:00",
			"moved: 12:00 does not exist, the clock goes from 00:00 to 00:00"},
		{"0 3 * * *", "Europe/Berlin", "2024-03-30T03:00:00Z", "2024-03-31 03:00:00", ""},
		{"@every 1h", "Europe/Berlin", "2024-10-27T00:30:00Z", "2024-10-27 02:30:00", ""},
	}
	for _, test := range tests {
		for f := range mustParse(t, test.spec, test.zone).Upcoming(mustTime(t, test.from)) {
			if f.Local != test.local || f.Note != test.note {
				t.Errorf("%s %s: %v asked for %s, note %q\nwant %s, %q", test.spec, test.zone, f.At, f.Local, f.Note, test.local, test.note)
			}
			break
		}
	}
}

func TestSpecDescribe(t *testing.T) {
	tests := []struct{ spec, want string }{
		{"30 2 * * 1-5", "At 02:30 on weekdays"},
		{"30 2 * * *", "At 02:30 every day"},
		{"0,30 8,20 * * *", "At 08:00, 08:30, 20:00 and 20:30 every day"},
		{"* * * * *", "Every minute"},
		{"*/15 * * * *", "Every 15 minutes"},
		{"*/7 * * * *", "At minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"},
		{"0 * * * *", "Every hour"},
		{"5 * * * *", "At minute 5 of every hour"},
		{"0 */2 * * *", "Every 2 hours"},
		{"10 */2 * * *", "At minute 10 of every 2nd hour from 00:00 on"},
		{"*/5 9-17 * * 1-5", "Every 5 minutes from 09:00 to 17:59 on weekdays"},
		{"* 1,3,5 * * 0,6", "Every minute of the hours 01, 03 and 05 on weekends"},
		{"10-20 * * * *", "Every minute from 10 to 20"},
		{"0 0 1,15 * *", "At 00:00 on the 1st and the 15th of the month"},
		{"0 0 13 * FRI", "At 00:00 on the 13th of the month or on Fridays"},
		{"0 0 */16 * MON", "At 00:00 on the 1st and the 17th of the month that is also Mondays"},
		{"0 0 1-31 * 1", "At 00:00 every day"},
		{"0 0 L-3,LW,15W,L * *", "At 00:00 on the weekday nearest to the 15th, the last day, the day 3 days before the last and the last weekday of the month"},
		{"0 9 * * 1#2,5L", "At 09:00 on the second Monday of the month and the last Friday of the month"},
		{"0 0 2-9 6-8 *", "At 00:00 on the 2nd to 9th of the month from June to August"},
		{"@yearly", "At 00:00 on the 1st of the month in January"},
		{"0 9 * 1,3 *", "At 09:00 every day in January and March"},
		{"@every 5400s", "Every 1h30m"},
		{"@every 24h", "Every 24h"},
	}
	for _, test := range tests {
		if got := mustParse(t, test.spec, "Europe/Berlin").Describe(); got != test.want+", Europe/Berlin" {
			t.Errorf("%s: %s\nwant %s", test.spec, got, test.want)
		}
	}
	s, err := ParseSpec("*/10 30 4 * * *", SpecOptions{Seconds: true})
	if want := "At 04:30:00, 04:30:10, 04:30:20, 04:30:30, 04:30:40 and 04:30:50 every day, UTC"; err != nil || s.Describe() != want {
		t.Errorf("%s (%v), want %s", s.Describe(), err, want)
	}
	s = mustParse(t, "@every 2h", "UTC").Anchored(time.Unix(0, 0))
	if want := "Every 2h, counted from 1970-01-01 00:00:00, UTC"; s.Describe() != want {
		t.Errorf("%s, want %s", s.Describe(), want)
	}
}

func TestSpecString(t *testing.T) {
	tests := []struct{ spec, zone, want string }{
		{" 08  09\t01 FEB ? ", "", "8 9 1 2 *"},
		{"0 0 * * SUN,7,5-7,fri#1,7L", "", "0 0 * * 0,0,5-7,5#1,0L"},
		{"0 0 l-03,lw,05w * *", "", "0 0 L-3,LW,5W * *"},
		{"?/5 1/2 * * *", "Europe/Berlin", "CRON_TZ=Europe/Berlin */5 1/2 * * *"},
		{"TZ=UTC 0 0 * * *", "Europe/Berlin", "CRON_TZ=UTC 0 0 * * *"},
		{"@midnight", "", "@daily"},
		{"@every 90m", "", "@every 1h30m0s"},
		{"0 3 * * *", "Local", "0 3 * * *"},
	}
	for _, test := range tests {
		s := mustParse(t, test.spec, test.zone)
		if s.String() != test.want || mustParse(t, s.String(), test.zone).String() != test.want {
			t.Errorf("%q in %q: %q, want %q", test.spec, test.zone, s, test.want)
		}
	}
	if loc := mustParse(t, "0 3 * * *", "Local").Zone(); loc != time.Local {
		t.Errorf("Local is %v", loc)
	}
}

func TestSpecZeroAndExtremes(t *testing.T) {
	var zero Spec
	if next, ok := zero.Next(time.Now()); ok || !next.IsZero() {
		t.Errorf("the zero Spec fires at %v", next)
	}
	if _, ok := zero.Prev(time.Now()); ok || zero.Describe() != "Never" || zero.Zone() != time.UTC || zero.String() != "" {
		t.Errorf("the zero Spec: %q, %q, %v", zero.Describe(), zero, zero.Zone())
	}
	for range zero.Upcoming(time.Now()) {
		t.Error("the zero Spec has firings")
	}
	for _, spec := range []string{"* * * * *", "0 0 29 2 1", "@every 1h", "0 3 L * 5#5"} {
		for _, zone := range []string{"UTC", "Europe/Berlin", "Etc/GMT+12"} {
			s := mustParse(t, spec, zone)
			for _, u := range []int64{math.MinInt64, -1 << 60, -maxUnix, -1 << 40, -62135596800, 0, 1 << 40, maxUnix - 1, maxUnix, 1 << 60} {
				at := time.Unix(u, 999_999_999)
				for _, s := range []Spec{s, s.Anchored(at)} {
					if next, ok := s.Next(at); ok && !next.After(at) {
						t.Errorf("%s: Next(%v) = %v", s, at, next)
					}
					if prev, ok := s.Prev(at); ok && !prev.Before(at) {
						t.Errorf("%s: Prev(%v) = %v", s, at, prev)
					}
				}
			}
		}
	}
}

func TestSpecIsSharedAndFree(t *testing.T) {
	s := mustParse(t, "*/5 9-17 * * 1-5", "Europe/Berlin")
	from := mustTime(t, "2024-03-30T00:00:00Z")
	want, _ := s.Next(from)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if got, _ := s.Next(from); got != want {
					t.Errorf("Next = %v, want %v", got, want)
				}
			}
		})
	}
	wg.Wait()
	if n := testing.AllocsPerRun(100, func() { s.Next(from); s.Prev(from) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	seen := slices.Collect(func(yield func(Firing) bool) {
		n := 0
		for f := range s.Upcoming(from) {
			if n++; n > 3 || !yield(f) {
				return
			}
		}
	})
	if len(seen) != 3 || !slices.IsSortedFunc(seen, func(a, b Firing) int { return a.At.Compare(b.At) }) {
		t.Errorf("Upcoming gave %v", seen)
	}
}

// Every zone in the list of hints exists, and in each a daily and an hourly
// spec agree with the reference at each change of the offset of some years.
func TestSpecEveryZone(t *testing.T) {
	names := strings.Fields(zoneNames)
	if !slices.IsSorted(names) || len(names) < 500 {
		t.Errorf("%d zone names, or not in order", len(names))
	}
	for i, name := range names {
		daily := mustParse(t, "30 0-3 * * *", name)
		fixed := mustParse(t, "30 0,1,2,23 * * *", name)
		first := time.Date(1890+i%135, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
		for _, span := range refSpans(daily.loc, first, first+4*366*daySeconds)[1:] {
			for _, s := range []Spec{daily, fixed} {
				ref := newReference(s.text, s.loc)
				for _, u := range []int64{span.start - 86_400, span.start - 3601, span.start - 1, span.start, span.start + 3600} {
					checkNext(t, s, ref, time.Unix(u, 0))
				}
			}
		}
	}
}

// The tests below are public bug reports about other schedulers, told of this
// one; the sources stand with each.

// robfig/cron#541, #12: a daily job inside the hour that spring skips was lost.
func TestB039SpringGap(t *testing.T) {
	const zone, from = "America/New_York", "2027-03-13T12:00:00-05:00"
	wantFirings(t, mustParse(t, "30 2 * * *", zone), from, "2027-03-14T03:00:00-04:00 2027-03-15T02:30:00-04:00")
	if n := firingsOn(mustParse(t, "0 * * * *", zone), "2027-03-14"); n != 23 {
		t.Errorf("hourly fires %d times on a day of 23 hours", n)
	}
}

// netresearch/go-cron#349, kelektiv/node-cron#563: a job in the repeated hour
// fired twice.
func TestB040AutumnOverlap(t *testing.T) {
	const zone, from = "America/New_York", "2027-11-06T12:00:00-04:00"
	wantFirings(t, mustParse(t, "30 1 * * *", zone), from, "2027-11-07T01:30:00-04:00 2027-11-08T01:30:00-05:00")
	if n := firingsOn(mustParse(t, "0 * * * *", zone), "2027-11-07"); n != 25 {
		t.Errorf("hourly fires %d times on a day of 25 hours", n)
	}
	at := mustTime(t, from)
	for f := range mustParse(t, "@every 30m", zone).Upcoming(at) {
		if f.At.Sub(at) != 30*time.Minute {
			t.Fatalf("@every 30m goes from %v to %v", at, f.At)
		}
		if at = f.At; at.Day() == 8 {
			break
		}
	}
}

// firingsOn counts the firings whose local date is the given one.
func firingsOn(s Spec, date string) (n int) {
	day, _ := time.ParseInLocation(time.DateOnly, date, s.Zone())
	for f := range s.Upcoming(day.Add(-1)) {
		if f.At.Format(time.DateOnly) != date {
			break
		}
		n++
	}
	return n
}

// jaclarke/cronosjs#37, node-red-contrib-cron-plus#110, floraison/fugit#20:
// impossible dates spun for ever.
func TestB043ImpossibleDates(t *testing.T) {
	for _, spec := range []string{"0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *", "0 0 L-29 2 *", "0 0 31W 2 *", "0 0 30 2 */7"} {
		if _, err := ParseSpec(spec, SpecOptions{}); err == nil || !strings.Contains(err.Error(), "never fires") {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// robfig/cron#70, croniter#40, inngest#2631: day of month and day of week mean
// "or" in one spelling and "and" in another. They do here too, as in Vixie's
// cron: a field that begins with a star does not count as restricted.
func TestB045DayOfMonthAndDayOfWeek(t *testing.T) {
	for spec, want := range map[string]string{
		"0 0 1-31/10 * MON": "01 07 11 14 21 28 31",
		"0 0 */10 * MON":    "21",
	} {
		var days []string
		for f := range mustParse(t, spec, "UTC").Upcoming(mustTime(t, "2026-11-30T23:59:59Z")) {
			if f.At.Month() != time.December {
				break
			}
			days = append(days, f.At.Format("02"))
		}
		if got := strings.Join(days, " "); got != want {
			t.Errorf("%s: %s December, want %s", spec, got, want)
		}
	}
}

// go-cron changelog 0.5.0, oban changelog v2.17.0: empty zones and reversed
// ranges crashed the parser or slipped through.
func TestB046CrashingSpecs(t *testing.T) {
	for _, spec := range []string{
		"TZ=", "CRON_TZ=UTC", "CRON_TZ= * * * * *", "", "   ", "* * * *", "0 0 * * SAT-FRI", "*/0 * * * *", "*/61 * * * *",
		"60 * * * *", strings.Repeat("1,", 5000) + "1 * * * *", "TZ=../../etc/passwd 0 0 * * *", "@every 0s", "@every -5m",
	} {
		var e *SpecError
		if _, err := ParseSpec(spec, SpecOptions{}); !errors.As(err, &e) || e.Field == "" {
			t.Errorf("%.40q: %v", spec, err)
		}
	}
}

// supercronic f54190f: leading zeros were read as octal.
func TestB047LeadingZeros(t *testing.T) {
	wantFirings(t, mustParse(t, "08 09 01 02 *", "UTC"), "2026-05-05T00:00:00Z", "2027-02-01T09:08:00Z 2028-02-01T09:08:00Z")
	wantFirings(t, mustParse(t, "00 00 * * 07", "UTC"), "2026-05-05T00:00:00Z", "2026-05-10T00:00:00Z 2026-05-17T00:00:00Z")
}

// supercronic#6: everything ran one slot late. A slot 100 ms away is next.
func TestB049SlotJustAhead(t *testing.T) {
	wantFirings(t, mustParse(t, "* * * * *", "Europe/Berlin"), "2026-05-05T11:59:59.9+02:00", "2026-05-05T12:00:00+02:00 2026-05-05T12:01:00+02:00")
}

func ExampleParseSpec() {
	s, err := ParseSpec("30 2 * * *", SpecOptions{Zone: "Europe/Berlin"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Describe())
	n := 0
	for f := range s.Upcoming(time.Date(2024, 3, 30, 0, 0, 0, 0, time.UTC)) {
		fmt.Println(f.At)
		if f.Note != "" {
			fmt.Println("\t" + f.Note)
		}
		if n++; n == 3 {
			break
		}
	}
	// Output:
	// At 02:30 every day, Europe/Berlin
	// 2024-03-30 02:30:00 +0100 CET
	// 2024-03-31 03:00:00 +0200 CEST
	// 	moved: 02:30 does not exist, the clock goes from 02:00 to 03:00
	// 2024-04-01 02:30:00 +0200 CEST
}
