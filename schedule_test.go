package rota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// nights are the schedules of a simulated year.
var nights = []Schedule{
	{Name: "once", Spec: "0 3 * * *", Zone: "Europe/Berlin"},
	{Name: "all", Spec: "30 2 * * *", Missed: MissedAll, CatchUp: 400},
	{Name: "skip", Spec: "0 4 * * *", Zone: "America/New_York", Missed: MissedSkip},
	{Name: "parallel", Spec: "0 3 * * *", Zone: "Asia/Tokyo", Overlap: OverlapAllow},
	{Name: "impatient", Spec: "15 3 * * *", Overlap: OverlapSkip, Deadline: 12 * time.Hour},
}

// TestAYearOfNightsRunsEachOnceOrSaysWhyNot lets a program with five schedules
// live through a year (of some months under the race detector): work that fails, panics, hangs and outlasts its night,
// stops, kills, and outages of minutes and of days.
func TestAYearOfNightsRunsEachOnceOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		end := begin.AddDate(0, fewer(12, 2), 0)
		path := filepath.Join(t.TempDir(), "rota.db")
		var up [][2]time.Time
		for kills := 0; time.Now().Before(end); {
			s := openYear(t, path)
			live, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(live) }()
			from := time.Now()
			time.Sleep(time.Duration(r.Int64N(int64(30*24*time.Hour))) + time.Second)
			synctest.Wait()
			up = append(up, [2]time.Time{from, time.Now()})
			if r.IntN(2) == 0 { // a kill: what lies on the disk now is all that is left
				kills++
				copied := filepath.Join(t.TempDir(), fmt.Sprintf("killed-%d.db", kills))
				copyFile(t, path, copied)
				copyFile(t, path+"-wal", copied+"-wal")
				path = copied
			}
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, ErrHandlersLeft) {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if r.IntN(3) > 0 {
				time.Sleep(time.Duration(r.Int64N(int64(9 * 24 * time.Hour))))
			} else {
				time.Sleep(time.Duration(r.Int64N(int64(2 * time.Minute))))
			}
		}

		s := openYear(t, path)
		checkInvariants(t, s)
		for _, sch := range nights {
			checkNights(t, s, sch, begin, up)
		}
	})
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func openYear(t *testing.T, path string) *Scheduler {
	s := openAt(t, path, Config{
		PollInterval: -1, LeaseTTL: 24 * time.Hour, Durability: DurabilityNormal, Unwind: time.Minute,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if _, err := s.DB().Exec(`CREATE TABLE IF NOT EXISTS effects (id TEXT)`); err != nil {
		t.Fatal(err)
	}
	Handle(s, Kind[string]("night"), func(ctx context.Context, job *Job, name string) error {
		if job.Schedule != name || job.ScheduledFor.IsZero() || time.Now().Before(job.ScheduledFor) {
			t.Errorf("schedule %q has a job for %v at %v", job.Schedule, job.ScheduledFor, time.Now())
		}
		switch fate := rand.IntN(20); {
		case fate == 0:
			return errors.New("no")
		case fate == 1:
			panic("no")
		case fate == 2: // longer than its timeout
			<-ctx.Done()
			return ctx.Err()
		case fate == 3 && job.Attempt == 1: // longer than its night
			if err := work(ctx, 30*time.Hour); err != nil {
				return err
			}
		default:
			if err := work(ctx, time.Duration(rand.Int64N(int64(time.Hour)))); err != nil {
				return err
			}
		}
		return completeWith(ctx, s, job, "commit")
	}, Policy{Timeout: 31 * time.Hour, MaxDeaths: 1000, Retry: Retry{Base: 10 * time.Minute, MaxAttempts: 1000}})
	for _, sch := range nights {
		if err := Kind[string]("night").Declare(s, sch, sch.Name); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// checkNights compares what stands in the table with every instant at which the
// schedule fired in the year.
func checkNights(t *testing.T, s *Scheduler, sch Schedule, begin time.Time, up [][2]time.Time) {
	t.Helper()
	spec, err := ParseSpec(sch.Spec, SpecOptions{Zone: sch.Zone})
	if err != nil {
		t.Fatal(err)
	}
	next := time.Time{}
	rows := make(map[int64]*Job)        // by instant
	coalesced := make(map[int64]string) // instant to the job that names it
	effects, err := texts(t.Context(), s.DB(), `SELECT id FROM effects`)
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for job := range jobsOf(t, s, Filter{Schedule: sch.Name}) {
		at := micros(job.ScheduledFor)
		if rows[at] != nil {
			t.Errorf("%s: %v has two occurrences", sch.Name, job.ScheduledFor)
		}
		rows[at] = job
		if job.Spec != "" {
			next = job.ScheduledFor
		}
		count := 0
		for _, id := range effects {
			if id == job.ID {
				count++
			}
		}
		if (job.State == Succeeded) != (count == 1) || count > 1 {
			t.Errorf("%s: %v is %s with %d effects", sch.Name, job.ScheduledFor, job.State, count)
		}
		if job.Attempt == 0 {
			continue
		}
		ran++
		var note struct {
			N     int       `json:"coalesced"`
			First time.Time `json:"coalesced_from"`
			Last  time.Time `json:"coalesced_to"`
		}
		if raw := attemptsOf(t, s, job.ID)[0].Note; raw != nil {
			if err := json.Unmarshal(raw, &note); err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
		}
		named := 0
		for at, ok := note.First, note.N > 0; ok && !at.After(note.Last); at, ok = spec.Next(at) {
			if other := coalesced[micros(at)]; other != "" {
				t.Errorf("%s: %v is named by %s and %s", sch.Name, at, other, job.ID)
			}
			coalesced[micros(at)] = job.ID
			named++
		}
		if named != note.N {
			t.Errorf("%s: %v names %d others and counts %d", sch.Name, job.ScheduledFor, named, note.N)
		}
	}
	if next.IsZero() {
		t.Fatalf("%s has no next occurrence", sch.Name)
	}
	instants, late := 0, 0
	for at, ok := spec.Next(begin); ok && at.Before(next); at, ok = spec.Next(at) {
		instants++
		job := rows[micros(at)]
		isRow, isNamed := job != nil, coalesced[micros(at)] != ""
		if isRow == isNamed {
			t.Errorf("%s: %v is a row: %v, and named by another: %v", sch.Name, at, isRow, isNamed)
			continue
		}
		running := slices.ContainsFunc(up, func(span [2]time.Time) bool { return !at.Before(span[0]) && !at.After(span[1]) })
		if !running {
			late++
		}
		switch sch.Name {
		case "all":
			if isNamed || job.State == Cancelled {
				t.Errorf("all: %v did not run of its own", at)
			}
		case "parallel":
			// Whatever its neighbours do, a night at which the program is up
			// begins on time.
			if running && (isNamed || job.State == Cancelled || job.StartedAt.Sub(at) > time.Second) {
				t.Errorf("parallel: %v is named by another: %v; row %+v", at, isNamed, job)
			}
		case "skip":
			if isRow && job.State == Succeeded && job.StartedAt.Sub(at) > time.Minute {
				t.Errorf("skip: %v was begun at %v", at, job.StartedAt)
			}
		case "impatient":
			if isRow && job.State == Succeeded && job.StartedAt.Sub(at) > 12*time.Hour {
				t.Errorf("impatient: %v was begun at %v", at, job.StartedAt)
			}
		}
		if isRow && job.State == Cancelled && job.Reason != "too_late" && job.Reason != "overlap" {
			t.Errorf("%s: %v is cancelled for %q", sch.Name, at, job.Reason)
		}
		if isRow && job.State == Dead {
			t.Errorf("%s: %v is dead: %s, %s", sch.Name, at, job.Reason, job.Error)
		}
	}
	if instants < fewer(300, 40) || late == 0 || ran == 0 {
		t.Errorf("%s: %d instants, %d of them in outages, %d ran: the year shows too little", sch.Name, instants, late, ran)
	}
}

// heads are the schedules' next occurrences, as "name spec state".
func heads(t testing.TB, s *Scheduler) (lines []string) {
	t.Helper()
	all, err := s.Schedules(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, head := range all {
		lines = append(lines, fmt.Sprintf("%s %s %s", head.Schedule, head.Spec, head.State))
	}
	return lines
}

func TestDeclarationsAreReconciledAtEachStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		version := func(declare ...Schedule) *Scheduler {
			t.Helper()
			s := openAt(t, path, Config{PollInterval: -1})
			for _, sch := range declare {
				if err := plain.Declare(s, sch, struct{}{}); err != nil {
					t.Fatal(err)
				}
			}
			runDue(t, s)
			return s
		}
		rows := func(s *Scheduler) string { return dump(t, s.DB(), "rota_jobs", "spec IS NOT NULL") }

		s := version(Schedule{Name: "a", Spec: "0 3 * * *"}, Schedule{Name: "b", Spec: "0 4 * * *"})
		if err := plain.Schedule(t.Context(), s, Schedule{Name: "made.by.hand", Spec: "0 5 * * *"}, struct{}{}); err != nil {
			t.Fatal(err)
		}
		if err := s.PauseSchedule(t.Context(), "b", time.Time{}, By{Actor: "anna"}); err != nil {
			t.Fatal(err)
		}
		before := rows(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)

		// The same program again: not a byte changes.
		s = version(Schedule{Name: "a", Spec: "0 3 * * *"}, Schedule{Name: "b", Spec: "0 4 * * *"})
		if after := rows(s); after != before {
			t.Errorf("a restart made\n%sof\n%s", after, before)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		// A new version: a is gone, b has moved and is still paused, c is new.
		s = version(Schedule{Name: "b", Spec: "30 4 * * *"}, Schedule{Name: "c", Spec: "0 6 * * *"})
		if want := []string{"b 30 4 * * * paused", "c 0 6 * * * pending", "made.by.hand 0 5 * * * pending"}; !slices.Equal(heads(t, s), want) {
			t.Errorf("schedules %q, want %q", heads(t, s), want)
		}
		actions, err := s.Actions(t.Context(), "")
		if err != nil || len(actions) != 2 {
			t.Fatalf("on record: %+v, %v", actions, err)
		}
		if a := actions[1]; a.Action != "unschedule" || a.Schedule != "a" || !strings.Contains(a.Reason, "not declare") {
			t.Errorf("on record: %+v", a)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		// A program without any: what was made by hand stays, until it is removed by hand.
		s = version()
		if want := []string{"made.by.hand 0 5 * * * pending"}; !slices.Equal(heads(t, s), want) {
			t.Errorf("schedules %q, want %q", heads(t, s), want)
		}
		if err := s.Unschedule(t.Context(), "made.by.hand", By{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Unschedule(t.Context(), "made.by.hand", By{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("unschedule it again: %v", err)
		}
		if got := heads(t, s); len(got) != 0 {
			t.Errorf("schedules %q", got)
		}
	})
}

func TestAChangedScheduleMovesAndItsOtherFiringsStay(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		var ran []string
		Handle(s, Kind[string]("changing"), func(_ context.Context, job *Job, args string) error {
			ran = append(ran, job.ScheduledFor.Format("02 15:04 ")+args)
			return nil
		}, Policy{})
		schedule := func(spec, args string) {
			t.Helper()
			if err := Kind[string]("changing").Schedule(t.Context(), s, Schedule{Name: "x", Spec: spec}, args); err != nil {
				t.Fatal(err)
			}
		}
		schedule("0 * * * *", "hourly")
		stop := start(t, s)
		time.Sleep(2*time.Hour + time.Minute)
		schedule("0 * * * *", "hourly, with other arguments")
		time.Sleep(time.Hour)
		schedule("30 */2 * * *", "each second hour")
		time.Sleep(4 * time.Hour)
		schedule("0 * * * *", "hourly again")
		time.Sleep(time.Hour)
		stop()
		want := []string{"01 01:00 hourly", "01 02:00 hourly", "01 03:00 hourly, with other arguments",
			"01 04:30 each second hour", "01 06:30 each second hour", "01 08:00 hourly again"}
		if !slices.Equal(ran, want) {
			t.Errorf("ran %q, want %q", ran, want)
		}
	})
}

func TestAPausedScheduleFiresNothingThroughRestartsAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		var ran []time.Time
		program := func() (*Scheduler, func()) {
			s := openAt(t, path, Config{PollInterval: -1, LeaseTTL: time.Hour})
			handle(s, plain, Policy{}, func(_ context.Context, job *Job) error {
				ran = append(ran, job.ScheduledFor)
				return nil
			})
			if err := plain.Declare(s, Schedule{Name: "hourly", Spec: "0 * * * *"}, struct{}{}); err != nil {
				t.Fatal(err)
			}
			return s, start(t, s)
		}
		s, stop := program()
		time.Sleep(time.Hour + time.Minute)
		if err := s.PauseSchedule(t.Context(), "hourly", time.Time{}, By{Actor: "anna", Reason: "holiday"}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(5 * time.Hour)
			stop()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s, stop = program()
		}
		if len(ran) != 1 {
			t.Errorf("%d firings, want the one before the pause", len(ran))
		}
		if err := s.ResumeSchedule(t.Context(), "hourly", By{Actor: "anna"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		stop()
		if len(ran) != 2 || ran[1].Sub(ran[0]) != 16*time.Hour {
			t.Errorf("after the pause ran %v", ran)
		}
		skipped := slices.Collect(jobsOf(t, s, Filter{Schedule: "hourly", State: Cancelled}))
		if len(skipped) != 1 || skipped[0].Reason != "paused" || !skipped[0].ScheduledFor.Equal(ran[0].Add(time.Hour)) ||
			!strings.Contains(string(attemptsOf(t, s, skipped[0].ID)[0].Note), `"coalesced":14`) {
			t.Errorf("of the firings in the pause there is %+v", skipped)
		}
		if got := story(t, s, skipped[0].ID); got != "skipped/paused" {
			t.Errorf("evidence %s", got)
		}
	})
}

func TestRunNowLeavesTheNextFiringByteForByte(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
		var ran []string
		handle(s, plain, Policy{}, func(_ context.Context, job *Job) error {
			ran = append(ran, job.ID)
			return nil
		})
		opts := EnqueueOptions{Priority: 7, Labels: map[string]string{"a": "b"}, Retry: &Retry{MaxAttempts: 3}}
		if err := plain.Schedule(t.Context(), s, Schedule{Name: "nightly", Spec: "0 3 * * *", Overlap: OverlapAllow, Options: opts}, struct{}{}); err != nil {
			t.Fatal(err)
		}
		before := dump(t, s.DB(), "rota_jobs", "spec IS NOT NULL")
		for range 3 {
			answer, err := s.RunNow(t.Context(), "nightly", By{Actor: "anna", Reason: "could not wait"})
			if err != nil {
				t.Fatal(err)
			}
			runDue(t, s)
			job := jobOf(t, s, answer.ID)
			if job.State != Succeeded || job.Schedule != "nightly" || job.Priority != 7 || job.Labels["a"] != "b" || job.Retry.MaxAttempts != 3 || job.Spec != "" {
				t.Errorf("%+v", job)
			}
			if actions, err := s.Actions(t.Context(), answer.ID); err != nil || len(actions) != 1 || actions[0].Action != "run now" || actions[0].Schedule != "nightly" {
				t.Errorf("on record: %+v, %v", actions, err)
			}
		}
		if after := dump(t, s.DB(), "rota_jobs", "spec IS NOT NULL"); after != before || len(ran) != 3 {
			t.Errorf("%d runs made\n%sof\n%s", len(ran), after, before)
		}
		time.Sleep(3 * time.Hour) // the night itself
		runDue(t, s)
		if len(ran) != 4 {
			t.Errorf("the night's own firing did not come")
		}
		if _, err := s.RunNow(t.Context(), "unheard of", By{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("run what does not exist: %v", err)
		}
	})
}

func TestAScheduleInALineLeavesItWithoutDisturbingTheOthers(t *testing.T) {
	for name, leave := range map[string]func(s *Scheduler) error{
		"paused":    func(s *Scheduler) error { return s.PauseSchedule(context.Background(), "x", time.Time{}, By{}) },
		"removed":   func(s *Scheduler) error { return s.Unschedule(context.Background(), "x", By{}) },
		"changed":   func(s *Scheduler) error { return scheduleInGroup(s, "*/5 * * * *") },
		"unchanged": func(s *Scheduler) error { return scheduleInGroup(s, "0 * * * *") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, s *Scheduler) {
				var d diary
				handle(s, plain, Policy{}, func(ctx context.Context, job *Job) error {
					return d.during(job, func() error { return work(ctx, 10*time.Minute) })
				})
				if err := scheduleInGroup(s, "0 * * * *"); err != nil {
					t.Fatal(err)
				}
				// One runs, two others wait before the schedule's occurrence.
				for range 3 {
					enqueue(t, s, plain, struct{}{}, EnqueueOptions{Group: "g"})
				}
				stop := start(t, s)
				time.Sleep(time.Minute)
				if err := leave(s); err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * time.Hour)
				stop()
				turns := d.of(ofAll)
				if most(turns) != 1 {
					t.Errorf("%d of the group at once", most(turns))
				}
				if n := len(slices.Collect(jobIDs(t, s, Filter{State: Succeeded, Group: "g"}))); n < 3 || (n > 3) != strings.HasSuffix(name, "changed") {
					t.Errorf("%d have run", n)
				}
			})
		})
	}
}

func scheduleInGroup(s *Scheduler, spec string) error {
	return plain.Schedule(context.Background(), s, Schedule{Name: "x", Spec: spec, Options: EnqueueOptions{Group: "g"}}, struct{}{})
}

func TestAScheduleThatCanNotBeIsRefused(t *testing.T) {
	s := open(t, Config{})
	for _, c := range []struct {
		sch  Schedule
		want error
	}{
		{Schedule{Name: "x", Spec: "61 * * * *"}, ErrSpec},
		{Schedule{Name: "x", Spec: "* * * * *", Zone: "Mars/Olympus"}, ErrSpec},
		{Schedule{Name: "", Spec: "* * * * *"}, ErrInvalid},
		{Schedule{Name: "two words", Spec: "* * * * *"}, ErrInvalid},
		{Schedule{Name: "x", Spec: "* * * * *", Missed: "sometimes"}, ErrConfig},
		{Schedule{Name: "x", Spec: "* * * * *", Overlap: "sometimes"}, ErrConfig},
		{Schedule{Name: "x", Spec: "* * * * *", CatchUp: -1}, ErrConfig},
		{Schedule{Name: "x", Spec: "* * * * *", Deadline: -1}, ErrConfig},
		{Schedule{Name: "x", Spec: "* * * * *", Options: EnqueueOptions{UniqueKey: "k"}}, ErrConfig},
		{Schedule{Name: "x", Spec: "* * * * *", Options: EnqueueOptions{RunAt: time.Now()}}, ErrConfig},
		{Schedule{Name: "x", Spec: "* * * * *", Options: EnqueueOptions{Priority: 2000}}, ErrInvalid},
	} {
		if err := plain.Schedule(t.Context(), s, c.sch, struct{}{}); !errors.Is(err, c.want) {
			t.Errorf("schedule %+v: %v", c.sch, err)
		}
		other := open(t, Config{})
		if err := plain.Declare(other, c.sch, struct{}{}); !errors.Is(err, c.want) {
			t.Errorf("declare %+v: %v", c.sch, err)
		}
		if err := other.Run(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("run after that: %v", err)
		}
	}
	if got := heads(t, s); len(got) != 0 {
		t.Errorf("schedules %q", got)
	}
}
