package rota

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What the program's declarations and people do to schedules. The helpers are in
// schedule_time_test.go.

// Bounds.

func TestAScheduleFiresWithinItsBoundsAndThenHasEnded(t *testing.T) {
	at := func(h, m int) time.Time { return time.Date(2000, 1, 1, h, m, 0, 0, time.UTC) }
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		boot := func() *Scheduler {
			s := openAt(t, path, quiet())
			handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
			declareTick(t, s, Schedule{Name: "s", Spec: "0 * * * *", NotBefore: at(3, 0), NotAfter: at(5, 0)})
			return s
		}
		s := boot()
		runDue(t, s)
		if next := nextOf(t, s, "s"); !next.ScheduledFor.Equal(at(3, 0)) {
			t.Errorf("the first firing is at %v, and both bounds are included", next.ScheduledFor)
		}
		for range 8 {
			time.Sleep(time.Hour)
			runDue(t, s)
		}
		wantHistory(t, s, "s", "01T03:00:00 succeeded", "01T04:00:00 succeeded", "01T05:00:00 succeeded")
		if next := nextOf(t, s, "s"); next != nil {
			t.Errorf("it has ended, and its next firing is at %v", next.ScheduledFor)
		}
		if got := actionsOn(t, s, "s"); len(got) != 1 || got[0] != "end by "+s.name {
			t.Errorf("actions: %q", got)
		}
		for _, err := range []error{
			s.PauseSchedule(t.Context(), "s", time.Time{}, By{}),
			s.Unschedule(t.Context(), "s", By{}),
		} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("a schedule that has ended: %v", err)
			}
		}
		if err := tick.Schedule(t.Context(), s, Schedule{Name: "s", Spec: "0 * * * *", NotAfter: at(5, 0)}, struct{}{}); !errors.Is(err, ErrConfig) {
			t.Errorf("schedule what never fires: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = boot() // the program goes on declaring it
		runDue(t, s)
		if got := actionsOn(t, s, "s"); len(got) != 1 {
			t.Errorf("actions after a restart: %q", got)
		}
	})
}

func TestADeclarationThatEndsAScheduleIsOnRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		s := openAt(t, path, quiet())
		declareTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
		runDue(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openAt(t, path, quiet())
		declareTick(t, s, Schedule{Name: "s", Spec: "0 * * * *", NotAfter: time.Now().Add(time.Minute)})
		runDue(t, s)
		if next := nextOf(t, s, "s"); next != nil {
			t.Errorf("its next firing is at %v", next.ScheduledFor)
		}
		if got := actionsOn(t, s, "s"); len(got) != 1 || got[0] != "end by "+s.name {
			t.Errorf("actions: %q", got)
		}
	})
}

// Changes of a schedule.

func TestAFiringThatHasComeIsNotLostWhenTheScheduleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		boot := func(sch Schedule) *Scheduler {
			s := openAt(t, path, quiet())
			handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
			sch.Name = "s"
			declareTick(t, s, sch)
			runDue(t, s)
			return s
		}
		s := boot(Schedule{Spec: "0 12 * * *"})
		sleepUntil(t, time.Date(2000, 1, 1, 11, 59, 0, 0, time.UTC))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		s = boot(Schedule{Spec: "0 18 * * *"}) // a deploy over noon, with another spec
		wantHistory(t, s, "s", "01T12:00:00 succeeded")
		if next := nextOf(t, s, "s").ScheduledFor; next.Hour() != 18 || next.Day() != 1 {
			t.Errorf("the next firing is at %v", next)
		}
		time.Sleep(time.Hour)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = boot(Schedule{Spec: "0 15 * * *"}) // no firing has come since
		if next := nextOf(t, s, "s").ScheduledFor; next.Hour() != 15 || next.Day() != 1 {
			t.Errorf("the next firing is at %v", next)
		}
		wantHistory(t, s, "s", "01T12:00:00 succeeded")
	})
}

func TestAnIntervalKeepsItsPhaseThroughRestartsAndDeclarations(t *testing.T) {
	r := seedOf(t)
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		const every = 7*time.Hour + 13*time.Minute
		time.Sleep(123*time.Hour + 456*time.Millisecond)
		anchor := time.Now().Truncate(time.Second)
		variants := []Schedule{
			{}, {Missed: MissedAll}, {Overlap: OverlapSkip}, {Zone: "Europe/Berlin"},
			{NotAfter: anchor.AddDate(5, 0, 0)}, {NotBefore: anchor}, {Options: EnqueueOptions{Priority: 3}},
		}
		for round := range scaled(60, 12) {
			s := openAt(t, path, quiet())
			handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
			sch := variants[0]
			if round > 0 {
				sch = variants[r.IntN(len(variants))]
			}
			sch.Name, sch.Spec = "s", "@every "+every.String()
			declareTick(t, s, sch)
			runDue(t, s)
			for range r.IntN(3) {
				time.Sleep(time.Duration(r.Int64N(int64(10 * time.Hour))))
				runDue(t, s)
			}
			for _, o := range history(t, s, "s") {
				if off := o.slot.Sub(anchor) % every; off != 0 {
					t.Fatalf("round %d: %v is %v out of phase", round, o, off)
				}
			}
			if off := nextOf(t, s, "s").ScheduledFor.Sub(anchor) % every; off != 0 {
				t.Fatalf("round %d: the next firing is %v out of phase", round, off)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(r.Int64N(int64(20 * time.Hour))))
		}
	})
}

// Run now and backfill.

func TestRunNowNeitherUsesUpNorMovesADueFiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		scheduleTick(t, s, Schedule{Name: "s", Spec: "0 12 * * *"})
		sleepUntil(t, time.Date(2000, 1, 1, 11, 59, 59, 0, time.UTC))
		before := nextOf(t, s, "s")
		for range 2 { // also twice in the same instant
			answer, err := s.RunNow(t.Context(), "s", By{Actor: "ann", Reason: "to see"})
			if err != nil || answer.ID == "" || answer.Duplicate {
				t.Fatalf("%+v, %v", answer, err)
			}
		}
		if after := nextOf(t, s, "s"); after.ID != before.ID || !after.RunAt.Equal(before.RunAt) || !after.ScheduledFor.Equal(before.ScheduledFor) {
			t.Errorf("the due firing changed from %+v to %+v", before, after)
		}
		runDue(t, s)
		sleepUntil(t, time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC))
		if _, err := s.RunNow(t.Context(), "s", By{Actor: "ann"}); err != nil { // at the instant of the firing
			t.Fatal(err)
		}
		runDue(t, s)
		wantHistory(t, s, "s", "01T11:59:59 succeeded", "01T11:59:59 succeeded", "01T12:00:00 succeeded", "01T12:00:00 succeeded")
		if got := actionsOn(t, s, "s"); !slices.Equal(got, []string{"run now by ann", "run now by ann", "run now by ann"}) {
			t.Errorf("actions: %q", got)
		}
		if _, err := s.RunNow(t.Context(), "other", By{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("a schedule that does not exist: %v", err)
		}
	})
}

// TestTheOverlapPolicyCountsForWhatAPersonAdds looks at how many occurrences are
// at work at once.
func TestTheOverlapPolicyCountsForWhatAPersonAdds(t *testing.T) {
	for _, test := range []struct {
		overlap     Overlap
		most        int  // at work at once
		addedBeside bool // while the due firing runs
	}{{OverlapWait, 1, true}, {OverlapSkip, 1, false}, {OverlapAllow, 5, true}} {
		t.Run(string(test.overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
				var mu sync.Mutex
				atWork, most := 0, 0
				handle(s, tick, Policy{}, func(context.Context, *Job) error {
					mu.Lock()
					atWork++
					most = max(most, atWork)
					mu.Unlock()
					time.Sleep(90 * time.Second)
					mu.Lock()
					atWork--
					mu.Unlock()
					return nil
				})
				scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *", Overlap: test.overlap})
				start(t, s)
				sleepUntil(t, time.Date(2000, 1, 1, 5, 0, 1, 0, time.UTC))
				_, now := s.RunNow(t.Context(), "s", By{})
				_, back := s.Backfill(t.Context(), "s", BackfillOptions{From: time.Date(1999, 12, 31, 1, 0, 0, 0, time.UTC), To: time.Date(1999, 12, 31, 3, 0, 0, 0, time.UTC)})
				for _, err := range []error{now, back} {
					if test.addedBeside != (err == nil) || err != nil && !errors.Is(err, ErrState) {
						t.Errorf("while a firing runs: %v", err)
					}
				}
				time.Sleep(20 * time.Minute)
				for range 2 { // none is at work now; then the first may be
					if _, err := s.RunNow(t.Context(), "s", By{}); err != nil {
						t.Error(err)
					}
				}
				sleepUntil(t, time.Date(2000, 1, 1, 5, 59, 30, 0, time.UTC))
				if _, err := s.RunNow(t.Context(), "s", By{}); err != nil {
					t.Error(err)
				}
				time.Sleep(20 * time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if most != test.most {
					t.Errorf("%d occurrences were at work at once, want %d", most, test.most)
				}
				rows := history(t, s, "s")
				last := rows[len(rows)-1].String()
				if want := map[bool]string{true: "01T06:00:00 cancelled/overlap", false: "01T06:00:00 succeeded"}[test.overlap == OverlapSkip]; last != want {
					t.Errorf("the due firing while an added one ran: %s, want %s", last, want)
				}
			})
		})
	}
}

func TestABackfillMakesUpEachInstantOnce(t *testing.T) {
	day := func(d, h int) time.Time { return time.Date(2000, 1, d, h, 0, 0, 0, time.UTC) }
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{Retry: Retry{MaxAttempts: 1}}, func(_ context.Context, job *Job) error {
			if job.ScheduledFor.Equal(day(1, 2)) {
				return errors.New("no")
			}
			return nil
		})
		scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
		for range 3 {
			time.Sleep(time.Hour)
			runDue(t, s)
		}
		time.Sleep(3*time.Hour + time.Minute)
		runDue(t, s) // 04:00, with 05:00 and 06:00 coalesced
		if err := s.PauseSchedule(t.Context(), "s", time.Time{}, By{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if err := s.ResumeSchedule(t.Context(), "s", By{}); err != nil {
			t.Fatal(err)
		}
		runDue(t, s) // 07:00 skipped, with 08:00
		before := []string{
			"01T01:00:00 succeeded", "01T02:00:00 dead", "01T03:00:00 succeeded",
			"01T04:00:00 succeeded +2 (01T05:00:00 to 01T06:00:00)",
			"01T07:00:00 cancelled/paused +1 (01T08:00:00 to 01T08:00:00)",
		}
		wantHistory(t, s, "s", before...)
		head := nextOf(t, s, "s")

		opts := BackfillOptions{From: day(0, 23), To: day(1, 8), By: By{Actor: "ann", Reason: "the feed was empty"}}
		opts.Preview = true
		preview, err := s.Backfill(t.Context(), "s", opts)
		if err != nil {
			t.Fatal(err)
		}
		wantHistory(t, s, "s", before...)
		if got := actionsOn(t, s, "s"); slices.Contains(got, "backfill by ann") {
			t.Errorf("a preview is on record: %q", got)
		}
		opts.Preview = false
		done, err := s.Backfill(t.Context(), "s", opts)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for i, b := range done {
			if !b.At.Equal(preview[i].At) || b.Refused != preview[i].Refused || preview[i].ID != "" || (b.ID == "") != (b.Refused != "") {
				t.Errorf("previewed %+v, done %+v", preview[i], b)
			}
			lines = append(lines, b.At.Format("02T15 ")+b.Refused)
		}
		want := []string{"31T23 ", "01T00 ", "01T01 it is succeeded", "01T02 it is dead", "01T03 it is succeeded",
			"01T04 it is succeeded", "01T05 ", "01T06 ", "01T07 ", "01T08 "}
		if !slices.Equal(lines, want) {
			t.Errorf("got %q, want %q", lines, want)
		}
		if got := nextOf(t, s, "s"); got.ID != head.ID || !got.ScheduledFor.Equal(head.ScheduledFor) || !got.RunAt.Equal(head.RunAt) || got.State != Pending {
			t.Errorf("the due firing changed from %+v to %+v", head, got)
		}
		if again, err := s.Backfill(t.Context(), "s", opts); err != nil || slices.ContainsFunc(again, func(b Backfilled) bool { return b.ID != "" }) {
			t.Errorf("a second time: %+v, %v", again, err)
		}
		runDue(t, s)
		if again, err := s.Backfill(t.Context(), "s", opts); err != nil || slices.ContainsFunc(again, func(b Backfilled) bool { return b.ID != "" }) {
			t.Errorf("after they ran: %+v, %v", again, err)
		}
		ran := make(map[time.Time]int)
		for _, o := range history(t, s, "s") {
			if o.job.State == Succeeded {
				ran[o.slot]++
			}
		}
		for at := day(0, 23); !at.After(day(1, 8)); at = at.Add(time.Hour) {
			if want := map[bool]int{true: 0, false: 1}[at.Equal(day(1, 2))]; ran[at] != want {
				t.Errorf("%v succeeded %d times, want %d", at, ran[at], want)
			}
		}
		if got := actionsOn(t, s, "s"); got[2] != "backfill by ann" {
			t.Errorf("actions: %q", got)
		}
		sleepUntil(t, day(1, 9))
		runDue(t, s)
		if rows := history(t, s, "s"); rows[len(rows)-1].String() != "01T09:00:00 succeeded" {
			t.Errorf("the due firing after it: %v", rows[len(rows)-1])
		}
	})
}

func TestABackfillRefusesWhatItMustNotDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		time.Sleep(300 * 24 * time.Hour)
		scheduleTick(t, s, Schedule{Name: "s", Spec: "* * * * *"})
		now := time.Now()
		for _, test := range []struct {
			sentence string
			name     string
			from, to time.Time
			want     error
		}{
			{"the future fires by itself", "s", now, now.Add(time.Minute), ErrInvalid},
			{"a range has a beginning", "s", time.Time{}, now, ErrInvalid},
			{"a range does not run backwards", "s", now, now.Add(-time.Minute), ErrInvalid},
			{"a range has at most 10,000 firings", "s", now.Add(-10_000 * time.Minute), now, ErrInvalid},
			{"there must be a schedule", "t", now.Add(-time.Hour), now, ErrNotFound},
		} {
			for _, preview := range []bool{true, false} {
				got, err := s.Backfill(t.Context(), test.name, BackfillOptions{From: test.from, To: test.to, Preview: preview})
				if !errors.Is(err, test.want) {
					t.Errorf("%s: %d answers, %v", test.sentence, len(got), err)
				}
			}
		}
		if rows := history(t, s, "s"); len(rows) > 0 {
			t.Fatalf("%d rows are left of what was refused", len(rows))
		}
		got, err := s.Backfill(t.Context(), "s", BackfillOptions{From: now.Add(-9_999 * time.Minute), To: now, Preview: raceEnabled})
		if err != nil || len(got) != 10_000 {
			t.Errorf("%d answers, %v", len(got), err)
		}
	})
}

func TestAnInstantThatABackfillRanDoesNotFireAgain(t *testing.T) {
	day := func(h int) time.Time { return time.Date(2000, 1, 1, h, 0, 0, 0, time.UTC) }
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		ran := make(map[time.Time]int)
		handle(s, tick, Policy{MaxRunning: 1}, func(_ context.Context, job *Job) error {
			ran[job.ScheduledFor]++
			return nil
		})
		scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *", Missed: MissedAll})
		time.Sleep(6*time.Hour + time.Minute) // no runner; 01:00 is due, 02:00 to 06:00 are to be made up
		got, err := s.Backfill(t.Context(), "s", BackfillOptions{From: day(1), To: day(4)})
		if err != nil || len(got) != 4 || got[0].Refused != "it is pending" {
			t.Fatalf("%+v, %v", got, err)
		}
		runDue(t, s)
		for h := 1; h <= 6; h++ {
			if ran[day(h)] != 1 {
				t.Errorf("%v ran %d times", day(h), ran[day(h)])
			}
		}
	})
}

// Pauses.

func TestAPauseUntilATimeEndsByItself(t *testing.T) {
	until := time.Date(2000, 1, 1, 5, 0, 0, 0, time.UTC)
	want := []string{
		"01T01:00:00 succeeded",
		"01T02:00:00 cancelled/paused +2 (01T03:00:00 to 01T04:00:00)",
		"01T05:00:00 succeeded", // the pause is over in that instant
		"01T06:00:00 succeeded",
	}
	pause := func(t *testing.T, s *Scheduler) {
		sleepUntil(t, time.Date(2000, 1, 1, 1, 30, 0, 0, time.UTC))
		if err := s.PauseSchedule(t.Context(), "s", time.Now().Add(time.Minute), By{Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		if err := s.PauseSchedule(t.Context(), "s", until, By{Actor: "ann", Reason: "longer"}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(t *testing.T, s *Scheduler) {
		wantHistory(t, s, "s", want...)
		if got := actionsOn(t, s, "s"); !slices.Equal(got, []string{"pause by ann", "pause by ann", "resume by " + s.name}) {
			t.Errorf("actions: %q", got)
		}
	}
	open := func(t *testing.T, path string, sch Schedule) *Scheduler {
		s := openAt(t, path, quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		sch.Name, sch.Spec = "s", "0 * * * *"
		declareTick(t, s, sch)
		return s
	}
	t.Run("while Run is at work", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, filepath.Join(t.TempDir(), "rota.db"), Schedule{})
			start(t, s)
			pause(t, s)
			sleepUntil(t, until.Add(-time.Second))
			if head := nextOf(t, s, "s"); head.State != Paused || head.Reason != reasonPaused {
				t.Errorf("in the pause it is %s, %s", head.State, head.Reason)
			}
			sleepUntil(t, until.Add(time.Millisecond))
			synctest.Wait()
			if rows := history(t, s, "s"); len(rows) != 3 {
				t.Errorf("the pause's end was not seen when it came: %v", rows)
			}
			time.Sleep(time.Hour)
			check(t, s)
		})
	})
	t.Run("when RunDue looks", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, filepath.Join(t.TempDir(), "rota.db"), Schedule{})
			runDue(t, s)
			time.Sleep(time.Hour)
			runDue(t, s)
			pause(t, s)
			for range 6 {
				runDue(t, s)
				sleepUntil(t, time.Now().Truncate(time.Hour).Add(time.Hour))
			}
			check(t, s)
		})
	})
	t.Run("through restarts and new declarations", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rota.db")
			s := open(t, path, Schedule{})
			runDue(t, s)
			time.Sleep(time.Hour)
			runDue(t, s)
			pause(t, s)
			for _, sch := range []Schedule{{}, {Overlap: OverlapAllow}, {NotBefore: until.AddDate(-1, 0, 0)}, {Options: EnqueueOptions{Priority: 7}}} {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Minute)
				s = open(t, path, sch)
				runDue(t, s)
				if head := nextOf(t, s, "s"); head.State != Paused || head.Reason != reasonPaused || !head.resumeAt.Equal(until) {
					t.Errorf("after a restart it is %s, %s until %v", head.State, head.Reason, head.resumeAt)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			sleepUntil(t, until.Add(10*time.Minute)) // it ends while nobody runs
			s = open(t, path, Schedule{Overlap: OverlapAllow})
			runDue(t, s)
			sleepUntil(t, until.Add(time.Hour))
			runDue(t, s)
			check(t, s)
		})
	})
}

func TestManyPausesThatEndTogetherAllEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		until := time.Now().Add(time.Hour)
		for i := range scaled(250, 120) {
			name := fmt.Sprint("s", i)
			scheduleTick(t, s, Schedule{Name: name, Spec: "@yearly"})
			if err := s.PauseSchedule(t.Context(), name, until, By{}); err != nil {
				t.Fatal(err)
			}
		}
		sleepUntil(t, until)
		runDue(t, s)
		heads, err := s.Schedules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, head := range heads {
			if head.State != Pending {
				t.Fatalf("%s is %s still", head.Schedule, head.State)
			}
		}
	})
}

func TestAResumedScheduleGoesOnFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *", Missed: MissedAll})
		if err := s.PauseSchedule(t.Context(), "s", time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC), By{}); err != nil {
			t.Fatal(err)
		}
		sleepUntil(t, time.Date(2000, 1, 1, 3, 30, 0, 0, time.UTC))
		for range 2 { // the second time does nothing
			if err := s.ResumeSchedule(t.Context(), "s", By{Actor: "ann"}); err != nil {
				t.Fatal(err)
			}
		}
		sleepUntil(t, time.Date(2000, 1, 1, 5, 10, 0, 0, time.UTC))
		runDue(t, s)
		wantHistory(t, s, "s", "01T01:00:00 cancelled/paused +2 (01T02:00:00 to 01T03:00:00)", "01T04:00:00 succeeded", "01T05:00:00 succeeded")
		if got := actionsOn(t, s, "s"); !slices.Equal(got, []string{"pause by unknown", "resume by ann"}) {
			t.Errorf("actions: %q", got)
		}
	})
}

// Broken rows.

func TestABrokenScheduleIsShownAndHoldsUpNoOther(t *testing.T) {
	edits := map[string]string{
		"spec":         `UPDATE rota_jobs SET spec = '61 * * * *' WHERE schedule = 's' AND spec IS NOT NULL`,
		"empty spec":   `UPDATE rota_jobs SET spec = '' WHERE schedule = 's' AND spec IS NOT NULL`,
		"unknown spec": `UPDATE rota_jobs SET spec = '@sunrise' WHERE schedule = 's' AND spec IS NOT NULL`,
		"zone":         `UPDATE rota_jobs SET zone = 'Europe/Atlantis' WHERE schedule = 's' AND spec IS NOT NULL`,
		"rule":         `UPDATE rota_jobs SET rule = '{"missed": 7' WHERE schedule = 's' AND spec IS NOT NULL`,
		"rule's types": `UPDATE rota_jobs SET rule = '{"anchor_us": "yesterday"}' WHERE schedule = 's' AND spec IS NOT NULL`,
	}
	for what, query := range edits {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", what, restart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "rota.db")
					boot := func() *Scheduler {
						s := openAt(t, path, quiet())
						handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
						return s
					}
					s := boot()
					scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
					scheduleTick(t, s, Schedule{Name: "other", Spec: "0 * * * *"})
					time.Sleep(time.Hour)
					runDue(t, s)
					edit(t, s, query)
					if restart {
						if err := s.Close(); err != nil {
							t.Fatal(err)
						}
						s = boot()
						runDue(t, s)
					}
					for range 2 {
						time.Sleep(time.Hour)
						runDue(t, s)
					}
					head := nextOf(t, s, "s")
					if head == nil || head.State != Paused || head.Reason != reasonBroken || head.Error == "" {
						t.Fatalf("it is shown as %+v", head)
					}
					wantHistory(t, s, "s", "01T01:00:00 succeeded")
					wantHistory(t, s, "other", "01T01:00:00 succeeded", "01T02:00:00 succeeded", "01T03:00:00 succeeded")
					for _, err := range []error{
						s.ResumeSchedule(t.Context(), "s", By{}),
						s.PauseSchedule(t.Context(), "s", time.Now().Add(time.Minute), By{}),
					} {
						if !errors.Is(err, ErrState) {
							t.Errorf("resume or pause what is broken: %v", err)
						}
					}
					if head := nextOf(t, s, "s"); head.Reason != reasonBroken || head.Error == "" {
						t.Errorf("after that it is shown as %s, %q", head.Reason, head.Error)
					}
					scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
					time.Sleep(time.Hour)
					runDue(t, s)
					rows := history(t, s, "s")
					if last := rows[len(rows)-1]; last.job.State != Succeeded || nextOf(t, s, "s").State != Pending {
						t.Errorf("scheduled anew: %v, then %+v", rows, nextOf(t, s, "s"))
					}
				})
			})
		}
	}
}

func TestAScheduleThatBreaksInItsPauseHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
		scheduleTick(t, s, Schedule{Name: "other", Spec: "0 * * * *"})
		runDue(t, s)
		start(t, s)
		synctest.Wait()
		if err := s.PauseSchedule(t.Context(), "s", time.Now().Add(90*time.Minute), By{}); err != nil {
			t.Fatal(err)
		}
		edit(t, s, `UPDATE rota_jobs SET spec = '* *' WHERE schedule = 's'`)
		time.Sleep(3*time.Hour + time.Minute)
		synctest.Wait()
		wantHistory(t, s, "other", "01T01:00:00 succeeded", "01T02:00:00 succeeded", "01T03:00:00 succeeded")
		if head := nextOf(t, s, "s"); head.State != Paused || head.Reason != reasonBroken || head.Error == "" {
			t.Errorf("it is shown as %+v", head)
		}
	})
}

func TestADeclarationMendsABrokenSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		for round, query := range []string{
			"", `UPDATE rota_jobs SET spec = 'H H H H' WHERE spec IS NOT NULL`, `UPDATE rota_jobs SET rule = '[]' WHERE spec IS NOT NULL`,
		} {
			s := openAt(t, path, quiet())
			handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
			if query != "" {
				edit(t, s, query)
			}
			declareTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
			runDue(t, s)
			time.Sleep(time.Hour)
			runDue(t, s)
			if rows := history(t, s, "s"); len(rows) != round+1 || rows[round].job.State != Succeeded {
				t.Fatalf("round %d: %v", round, rows)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestAPauseOutlivesAProgramThatCannotReadTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		s := openAt(t, path, quiet())
		declareTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
		runDue(t, s)
		if err := s.PauseSchedule(t.Context(), "s", time.Time{}, By{}); err != nil {
			t.Fatal(err)
		}
		edit(t, s, `UPDATE rota_jobs SET spec = '0 noon * * *' WHERE spec IS NOT NULL`) // a newer program's
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openAt(t, path, quiet()) // and back to this one
		declareTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
		runDue(t, s)
		if head := nextOf(t, s, "s"); head.State != Paused || head.Reason != reasonPaused || head.Spec != "0 * * * *" {
			t.Errorf("it is %s, %s: %s", head.State, head.Reason, head.Spec)
		}
	})
}

// Changed zone data.

func TestAnOccurrenceIsMovedAtStartWhenTheZonesDataHaveChanged(t *testing.T) {
	at := func(d, h, m int) time.Time { return time.Date(2000, 1, d, h, m, 0, 0, time.UTC) }
	for _, test := range []struct {
		sentence string
		stored   time.Time // what other data made of 03:00 in Berlin, 02:00 UTC
		starts   time.Time
		want     time.Time
		moved    bool
	}{
		{"too late is moved forward", at(2, 3, 0), at(1, 20, 0), at(2, 2, 0), true},
		{"too early is moved back", at(2, 1, 0), at(1, 20, 0), at(2, 2, 0), true},
		{"what should have been before the start is due", at(2, 3, 0), at(2, 2, 30), at(2, 2, 0), true},
		{"what is due has come", at(2, 1, 0), at(2, 1, 30), at(2, 1, 0), false},
		{"what is right stays", at(2, 2, 0), at(1, 20, 0), at(2, 2, 0), false},
	} {
		t.Run(test.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "rota.db")
				s := openAt(t, path, quiet())
				handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
				scheduleTick(t, s, Schedule{Name: "s", Spec: "0 3 * * *", Zone: "Europe/Berlin"})
				sleepUntil(t, at(1, 2, 0))
				runDue(t, s)
				edit(t, s, `UPDATE rota_jobs SET run_at = $1, scheduled_for = $1 WHERE spec IS NOT NULL`, micros(test.stored))
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				sleepUntil(t, test.starts)
				s = openAt(t, path, quiet()) // without a handler, so that it waits
				runDue(t, s)
				head := nextOf(t, s, "s")
				if !head.ScheduledFor.Equal(test.want) || !head.RunAt.Equal(test.want) {
					t.Errorf("the next firing is at %v (%v), want %v", head.ScheduledFor, head.RunAt, test.want)
				}
				if got := actionsOn(t, s, "s"); (len(got) == 1 && got[0] == "move by "+s.name) != test.moved {
					t.Errorf("actions: %q", got)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = openAt(t, path, quiet())
				handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
				if test.want.After(time.Now()) {
					sleepUntil(t, test.want)
				}
				runDue(t, s)
				rows := history(t, s, "s")
				if len(rows) != 2 || !rows[1].slot.Equal(test.want) || rows[1].job.State != Succeeded {
					t.Errorf("it ran %v", rows)
				}
			})
		})
	}
}

func TestAMoveNeverMeetsAnInstantThatHasRun(t *testing.T) {
	at := func(d, h int) time.Time { return time.Date(2000, 1, d, h, 0, 0, 0, time.UTC) }
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		s := openAt(t, path, quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		scheduleTick(t, s, Schedule{Name: "s", Spec: "0 3 * * *"})
		sleepUntil(t, at(1, 3))
		runDue(t, s)
		// The row was written by a clock that has been set back since.
		edit(t, s, `UPDATE rota_jobs SET run_at = $1, scheduled_for = $1, created_at = $2 WHERE spec IS NOT NULL`,
			micros(at(2, 4)), micros(at(1, 1)))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openAt(t, path, quiet())
		runDue(t, s)
		if head := nextOf(t, s, "s"); !head.ScheduledFor.Equal(at(2, 3)) {
			t.Errorf("the next firing is at %v", head.ScheduledFor)
		}
	})
}

// Many schedules.

func TestTenThousandDeclaredSchedulesAreWrittenDownOnceAndQuickly(t *testing.T) {
	many := scaled(10_000, 300)
	path := filepath.Join(t.TempDir(), "rota.db")
	boot := func(changed int) (*Scheduler, time.Duration, int) {
		s := openAt(t, path, Config{PollInterval: -1})
		for i := range many {
			sch := Schedule{
				Name: fmt.Sprintf("tenant-%05d", i), Spec: "H H(0-5) * * *", Zone: []string{"", "Europe/Berlin", "America/New_York"}[i%3],
				Options: EnqueueOptions{Labels: map[string]string{"tenant": fmt.Sprint(i), "region": "eu"}, Retry: &Retry{MaxAttempts: 3, Jitter: Full()}},
			}
			if i < changed {
				sch.Spec = "30 4 * * *"
			}
			declareTick(t, s, sch)
		}
		before := totalChanges(t, s)
		began := time.Now()
		runDue(t, s)
		return s, time.Since(began), totalChanges(t, s) - before
	}
	for _, test := range []struct {
		sentence string
		changed  int
		least    int // rows written
		most     int
	}{
		{"new ones get their occurrence", 0, many, many + 10},
		{"unchanged ones write nothing", 0, 0, 10}, // the lease is taken and given back
		{"of ten that have changed, ten are written", 10, 20, 30},
	} {
		s, took, changes := boot(test.changed)
		t.Logf("%s: %v, %d changes", test.sentence, took, changes)
		if changes < test.least || changes > test.most {
			t.Errorf("%s: %d changes", test.sentence, changes)
		}
		if limit := 20 * time.Second; took > limit {
			t.Errorf("%s: it took %v", test.sentence, took)
		}
		heads, err := s.Schedules(t.Context())
		if err != nil || len(heads) != many {
			t.Errorf("%s: %d schedules, %v", test.sentence, len(heads), err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// totalChanges is how many rows the writing connection has changed so far.
func totalChanges(t testing.TB, s *Scheduler) (n int) {
	t.Helper()
	err := s.writer.do(context.Background(), func(ctx context.Context, tx Tx) error {
		return tx.QueryRowContext(ctx, "SELECT total_changes()").Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTenThousandSchedulesOfOneMinuteAllRun(t *testing.T) {
	t.Parallel()
	many := scaled(10_000, 300)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		var mu sync.Mutex
		ran := make(map[string]int)
		handle(s, tick, Policy{}, func(_ context.Context, job *Job) error {
			mu.Lock()
			defer mu.Unlock()
			ran[job.Schedule]++
			return nil
		})
		for i := range many {
			declareTick(t, s, Schedule{Name: fmt.Sprint("s", i), Spec: "0 3 * * *"})
		}
		runDue(t, s)
		sleepUntil(t, time.Date(2000, 1, 1, 3, 0, 0, 0, time.UTC))
		closed := runDue(t, s)
		if len(closed) != many || len(ran) != many {
			t.Errorf("%d attempts of %d schedules; %d were due", len(closed), len(ran), many)
		}
		heads, err := s.Schedules(t.Context())
		if err != nil || len(heads) != many {
			t.Fatalf("%d schedules, %v", len(heads), err)
		}
		for _, head := range heads {
			if ran[head.Schedule] != 1 || !head.ScheduledFor.Equal(time.Date(2000, 1, 2, 3, 0, 0, 0, time.UTC)) {
				t.Fatalf("%s ran %d times, and next at %v", head.Schedule, ran[head.Schedule], head.ScheduledFor)
			}
		}
	})
}
