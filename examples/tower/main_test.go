package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

// TestMain lets this test binary be an instance of the company's program, as
// main does, and gives the tests a place for temporary files that they can
// inspect.
func TestMain(m *testing.M) {
	if settings := os.Getenv(instanceEnv); settings != "" {
		os.Exit(runInstance(settings))
	}
	folder, err := os.MkdirTemp("", "test-tower-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range []string{"TMPDIR", "TMP"} { // Unix, Windows
		os.Setenv(name, folder)
	}
	code := m.Run()
	if err := os.RemoveAll(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// leftBehind are the folders of stories that were not removed.
func leftBehind(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), "tower-*"))
	if err != nil {
		t.Fatal(err)
	}
	return folders
}

// logs are those of the stories that were not removed.
func logs(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, folder := range leftBehind(t) {
		names, err := filepath.Glob(filepath.Join(folder, "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			fmt.Fprintf(&all, "%s (%v):\n%s\n", filepath.Base(name), err, text)
		}
	}
	return all.String()
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func TestWithoutEnoughTimeItFailsAndKeepsTheFolder(t *testing.T) {
	var out bytes.Buffer
	if status, _ := run([]string{"-limit", "1ns"}, &out); status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	if last := lastLine(out.String()); !strings.HasPrefix(last, "FAILED: ") || !strings.Contains(last, "deadline") {
		t.Errorf("last line %q, want a failure that names the deadline", last)
	}
	left := leftBehind(t)
	if len(left) != 1 || !strings.Contains(out.String(), left[0]) {
		t.Fatalf("folders left behind: %q, want the one that the output names:\n%s", left, &out)
	}
	if err := os.RemoveAll(left[0]); err != nil {
		t.Fatal(err)
	}
}

func TestTheStoryEndsWellAndLeavesNothingBehind(t *testing.T) {
	var out bytes.Buffer
	status, f := run(nil, &out)
	if status != 0 {
		t.Fatalf("exit status %d:\n%s\n%s", status, &out, logs(t))
	}
	if last := lastLine(out.String()); !strings.HasPrefix(last, "OK: 117 of 120 due invoices ") {
		t.Errorf("last line %q", last)
	}
	for _, want := range []string{
		`wrote down 2 nightly schedules`,
		`Three nights have passed without it`,
		`tower-[ab]:\w+ has the lease \(token 2\)`,
		`kill -9 of tower-[ab], while \d+ payments were charged and not yet answered`,
		`tower-[ab]:\w+ took over \(token 3\)`,
		`replayed its dead job: succeeded`,
		`it ended cleanly`,
		`retry +http_503 +pending \(retry_after\): due again at \+`,
		`unknown +timeout`,
		`unknown +process_died`,
		`dead, permanent after http_422`,
		`dead, exhausted after http_500`,
		`117 charges for 117 invoices; the application sent 117\.`,
		`nightly-invoices .*"coalesced":[12],.*"enqueued":120`,
		`nightly-sessions +At 03:00 every day, Europe/Berlin`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the report does not say %q", want)
		}
	}
	if n := strings.Count(out.String(), "\n  holds "); n != len(claims) {
		t.Errorf("%d claims hold, want %d", n, len(claims))
	}
	if left := leftBehind(t); len(left) > 0 {
		t.Errorf("folders left behind: %q", left)
	}
	if t.Failed() {
		t.Logf("the output:\n%s", &out)
	}
	t.Run("and every claim of its report breaks when the tables speak against it", func(t *testing.T) {
		testThatEveryClaimCanBreak(t, f)
	})
}

// testThatEveryClaimCanBreak is the proof that the report is no formality: for
// each claim it changes a fact so that the claim is untrue.
func testThatEveryClaimCanBreak(t *testing.T, f *facts) {
	doctored := map[string]func(*facts){
		"each due invoice is sent": func(f *facts) { f.ledger = append(f.ledger, f.ledger[0]) },
		"the bank charged each":    func(f *facts) { f.book = append(f.book, f.book[0]) },
		"422 was final": func(f *facts) {
			f.changeJob(withoutAccount[1], func(job *rota.Job) { job.Reason = "exhausted" })
		},
		"each of the other refusals": func(f *facts) {
			f.changeAttempts(planned(throttled)[0], func(a *rota.Attempt) { a.Class = "http_429" })
		},
		"a 503 with Retry-After": func(f *facts) {
			f.changeAttempts(planned(unavailable)[3], func(a *rota.Attempt) { a.NextAt = a.FinishedAt })
		},
		"a payment whose answer was lost": func(f *facts) {
			for i := range f.book {
				f.book[i].Asked = 1
			}
		},
		"the expired sessions":             func(f *facts) { f.cleanups = append(f.cleanups, f.cleanups[0]) },
		"each schedule made up":            func(f *facts) { f.attempts[f.declared[0].ID][0].Note = nil },
		"all attempts under one token":     func(f *facts) { f.changeAttempts(61, func(a *rota.Attempt) { a.Runner = "another" }) },
		"the standby took over":            func(f *facts) { f.standby.AcquiredAt = f.killedAt.Add(f.runner.TTL) },
		"what the dead runner had in hand": func(f *facts) { f.changeAttempts(f.held[0], func(a *rota.Attempt) { a.Outcome = "retry" }) },
		"attempts are numbered":            func(f *facts) { f.changeAttempts(61, func(a *rota.Attempt) { a.Number++ }) },
		"the replay succeeded":             func(f *facts) { f.attempts[f.dead.ID][0].Error = "all was well" },
		"the clean stop":                   func(f *facts) { f.last.Holder = f.standby.Holder },
		"the next release": func(f *facts) {
			head := *f.next[0]
			head.ScheduledFor = head.ScheduledFor.Add(time.Hour)
			f.next = []*rota.Job{&head, f.next[1]}
		},
	}
	for _, c := range claims {
		var doctor func(*facts)
		for says, d := range doctored {
			if strings.HasPrefix(c.says, says) {
				doctor = d
			}
		}
		if doctor == nil {
			t.Errorf("no doctored facts for the claim that %s", c.says)
			continue
		}
		g := f.clone()
		doctor(g)
		if len(c.faults(g)) == 0 {
			t.Errorf("nothing could speak against the claim that %s", c.says)
		}
		if verdict, ok := g.verdict(); ok || !strings.HasPrefix(verdict, "FAILED: ") || !strings.Contains(verdict, c.says) {
			t.Errorf("verdict %q (%t) on facts against the claim that %s", verdict, ok, c.says)
		}
		var report bytes.Buffer
		g.print(&report)
		if !strings.Contains(report.String(), "BROKEN  "+c.says) {
			t.Errorf("the report does not show that it is broken that %s", c.says)
		}
	}
	if verdict, ok := f.verdict(); !ok {
		t.Errorf("the doctoring reached the facts themselves: %s", verdict)
	}
}

// clone copies what the tests change.
func (f *facts) clone() *facts {
	g := *f
	g.ledger, g.cleanups, g.book = slices.Clone(f.ledger), slices.Clone(f.cleanups), slices.Clone(f.book)
	g.jobs, g.attempts = slices.Clone(f.jobs), maps.Clone(f.attempts)
	for id, all := range g.attempts {
		g.attempts[id] = slices.Clone(all)
	}
	return &g
}

func (f *facts) changeJob(invoice int64, change func(*rota.Job)) {
	job := *f.firstJob(invoice)
	change(&job)
	for i := range f.jobs {
		if f.jobs[i].ID == job.ID {
			f.jobs[i] = &job
		}
	}
}

func (f *facts) changeAttempts(invoice int64, change func(*rota.Attempt)) {
	all := f.attempts[f.firstJob(invoice).ID]
	for i := range all {
		change(&all[i])
	}
}

func TestThreeNightsAreTheNextThreeFiringsOfTheirSchedule(t *testing.T) {
	for _, now := range []string{
		"2026-03-01 12:00:10.5", "2026-03-01 12:00:56.9", "2026-03-01 12:59:57", "2026-12-31 23:59:57.999", "2026-12-31 23:59:56",
	} {
		start, err := time.Parse("2006-01-02 15:04:05", now)
		if err != nil {
			t.Fatal(err)
		}
		night, nights := threeNights(start)
		spec, err := rota.ParseSpec(night.Spec, rota.SpecOptions{Zone: night.Zone, Seconds: night.Seconds})
		if err != nil {
			t.Fatal(err)
		}
		at := start
		for i, want := range nights {
			next, ok := spec.Next(at)
			if !ok || !next.Equal(want) {
				t.Errorf("from %s, night %d of %q is %s, want %s", now, i+1, night.Spec, next, want)
			}
			at = next
		}
		// The story must be over before the next one.
		if next, _ := spec.Next(at); next.Sub(at) < 50*time.Second {
			t.Errorf("from %s, %q fires a fourth time at %s", now, night.Spec, next)
		}
		if lead := nights[0].Sub(start); lead <= 2*time.Second || lead > 3*time.Second {
			t.Errorf("from %s, the first night is %v ahead", now, lead)
		}
	}
}
