package rotatest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-f4ae5dd2/rota"
)

// RequireEnqueued fails the test at once unless exactly one job of the kind,
// with these arguments, is pending, paused or running. It returns that job, for
// a closer look at its RunAt, say. Jobs that are held or have ended do not
// count. The next occurrence of a schedule does, once Run, Drain or
// [rota.Kind.Schedule] has written it down.
//
// Arguments are compared as JSON values and as a handler would read them:
// neither the order of keys matters, nor how a number is written, nor a field
// that T does not have. The failure lists what is there instead, the nearest
// first.
func RequireEnqueued[T any](t testing.TB, s *rota.Scheduler, kind rota.Kind[T], args T) *rota.Job {
	t.Helper()
	l := look(t, s, kind, args)
	switch len(l.found) {
	case 0:
		t.Fatalf("rotatest: no job %s is pending, paused or running; %s", l.want, l.instead())
	case 1:
		return l.found[0].job
	default:
		t.Fatalf("rotatest: %d jobs %s are pending, paused or running, not one:%s", len(l.found), l.want, list(l.found))
	}
	return nil
}

// RequireNone fails the test at once if a job of the kind is pending, paused or
// running: with any of these arguments or, if none are given, with whichever.
// What counts, and how arguments are compared, is as for RequireEnqueued.
func RequireNone[T any](t testing.TB, s *rota.Scheduler, kind rota.Kind[T], args ...T) {
	t.Helper()
	if l := look(t, s, kind, args...); len(l.found) > 0 {
		t.Fatalf("rotatest: no job %s should be pending, paused or running, but there is:%s", l.want, list(l.found))
	}
}

// lookup is what a look at all jobs gave.
type lookup struct {
	want  string      // what was looked for, as text
	found []candidate // in the order of arrival
	near  []candidate // all others, the nearest first
}

// candidate is a job, and what keeps it from being the one that is looked for.
type candidate struct {
	job   *rota.Job
	kind  bool     // it is of the kind
	live  bool     // it is in a state that counts
	diffs []string // where its arguments differ
}

// look compares every job with what is wanted; without args, all will do.
func look[T any](t testing.TB, s *rota.Scheduler, kind rota.Kind[T], args ...T) lookup {
	t.Helper()
	l := lookup{want: string(kind)}
	wanted := make([]any, len(args))
	for i, a := range args {
		data, err := json.Marshal(a)
		if err != nil {
			t.Fatalf("rotatest: arguments of %s: %v", kind, err)
		}
		wanted[i] = jsonValue(data)
		if i > 0 {
			l.want += " or"
		}
		l.want += " " + shorten(string(data))
	}
	for job, err := range s.Jobs(t.Context(), rota.Filter{}) {
		if err != nil {
			t.Fatalf("rotatest: %v", err)
		}
		c := candidate{
			job: job, kind: job.Kind == string(kind),
			live: job.State == rota.Pending || job.State == rota.Paused || job.State == rota.Running,
		}
		if len(wanted) > 0 {
			c.diffs = leastDiffs(readings[T](c), wanted)
		}
		if c.kind && c.live && len(c.diffs) == 0 {
			l.found = append(l.found, c)
		} else {
			l.near = append(l.near, c)
		}
	}
	slices.SortStableFunc(l.near, func(a, b candidate) int { return slices.Compare(a.distance(), b.distance()) })
	return l
}

// readings are a job's arguments as they stand and, for one of the kind, as its
// handler would read them.
func readings[T any](c candidate) []any {
	all := []any{jsonValue(c.job.Args)}
	var args T
	if c.kind && json.Unmarshal(c.job.Args, &args) == nil {
		if data, err := json.Marshal(args); err == nil {
			all = append(all, jsonValue(data))
		}
	}
	return all
}

// leastDiffs are the differences of the two that differ least.
func leastDiffs(readings, wanted []any) []string {
	var all [][]string
	for _, got := range readings {
		for _, want := range wanted {
			all = append(all, diff("", got, want))
		}
	}
	return slices.MinFunc(all, func(a, b []string) int { return cmp.Compare(len(a), len(b)) })
}

// distance orders candidates by what a programmer is likely to have got wrong:
// the state, then a part of the arguments, then the kind.
func (c candidate) distance() []int {
	d := []int{0, len(c.diffs), 0}
	if !c.kind {
		d[0] = 1
	}
	if !c.live {
		d[2] = 1
	}
	return d
}

// jsonValue is the value of a JSON text, its numbers as they are written.
func jsonValue(data []byte) any {
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return string(data) // an edited row: it is what it is
	}
	return v
}

// diff tells, place by place, how got differs from want; nothing if they are
// the same JSON value.
func diff(path string, got, want any) []string {
	switch want := want.(type) {
	case map[string]any:
		if got, ok := got.(map[string]any); ok {
			return diffObjects(path, got, want)
		}
	case []any:
		if got, ok := got.([]any); ok {
			return diffArrays(path, got, want)
		}
	case json.Number:
		if got, ok := got.(json.Number); ok && sameNumber(got, want) {
			return nil
		}
	case string, bool, nil:
		if got == want {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s is %s, not %s", cmp.Or(path, "it"), jsonText(got), jsonText(want))}
}

func diffObjects(path string, got, want map[string]any) (diffs []string) {
	all := maps.Clone(got)
	maps.Copy(all, want)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		at := strings.TrimPrefix(path+"."+key, ".")
		g, has := got[key]
		w, wants := want[key]
		switch {
		case !has:
			diffs = append(diffs, fmt.Sprintf("%s is missing", at))
		case !wants:
			diffs = append(diffs, fmt.Sprintf("%s is there, too", at))
		default:
			diffs = append(diffs, diff(at, g, w)...)
		}
	}
	return diffs
}

func diffArrays(path string, got, want []any) (diffs []string) {
	if len(got) != len(want) {
		diffs = append(diffs, fmt.Sprintf("%s has %d elements, not %d", cmp.Or(path, "it"), len(got), len(want)))
	}
	for i := range min(len(got), len(want)) {
		diffs = append(diffs, diff(fmt.Sprintf("%s[%d]", path, i), got[i], want[i])...)
	}
	return diffs
}

// sameNumber compares exactly: a float64 would take two large ids for one.
func sameNumber(a, b json.Number) bool {
	x, okX := new(big.Rat).SetString(string(a))
	y, okY := new(big.Rat).SetString(string(b))
	if !okX || !okY { // an exponent of millions
		return a == b
	}
	return x.Cmp(y) == 0
}

func jsonText(v any) string {
	data, _ := json.Marshal(v) // it came from JSON
	return shorten(string(data))
}

// instead says what is there besides what was looked for.
func (l lookup) instead() string {
	if len(l.near) == 0 {
		return "there are no jobs at all"
	}
	return "there is:" + list(l.near)
}

// list shows the first few jobs, a line each, and counts the rest.
func list(jobs []candidate) string {
	const shown = 10
	var b strings.Builder
	for _, c := range jobs[:min(len(jobs), shown)] {
		b.WriteString("\n\t" + c.text())
	}
	if len(jobs) > shown {
		counts := make(map[string]int)
		for _, c := range jobs[shown:] {
			counts[c.job.Kind]++
		}
		fmt.Fprintf(&b, "\n\tand %d more: %s", len(jobs)-shown, countsText(counts))
	}
	return b.String()
}

// text is the job in a line: what it is, how it stands, and how it differs.
func (c candidate) text() string {
	job := c.job
	text := fmt.Sprintf("%s %s: %s", job.Kind, shorten(string(job.Args)), job.State)
	switch wait := time.Until(job.RunAt); {
	case job.State == rota.Pending && wait > 0:
		text += fmt.Sprintf(" until %s (in %s)", job.RunAt.Format(time.RFC3339), wait.Round(time.Second))
	case job.State == rota.Pending:
		text += ", due"
	case job.Reason != "" && job.Reason != string(job.State):
		text += fmt.Sprintf(" (%s)", job.Reason)
	}
	if job.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d", job.Attempt)
	}
	if job.Schedule != "" {
		text += ", schedule " + job.Schedule
	}
	if job.Error != "" {
		text += ": " + shorten(job.Error)
	}
	const shown = 3
	if c.kind && len(c.diffs) > 0 {
		text += "; " + strings.Join(c.diffs[:min(len(c.diffs), shown)], ", ")
		if len(c.diffs) > shown {
			text += fmt.Sprintf(" and %d more differences", len(c.diffs)-shown)
		}
	}
	return text
}

// countsText names what was counted, the most frequent first.
func countsText(counts map[string]int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(-cmp.Compare(counts[a], counts[b]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", counts[name], name)
	}
	return strings.Join(names, ", ")
}

// shorten keeps a line readable.
func shorten(text string) string {
	const limit = 200
	if len(text) <= limit {
		return text
	}
	cut := limit
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return fmt.Sprintf("%s… (%d bytes)", text[:cut], len(text))
}
