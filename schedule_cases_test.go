package rota

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Failures of other schedulers, each told in its comment, tried here.

// tally counts a handler's runs by the instant that they are meant for.
type tally struct {
	mu   sync.Mutex
	runs []time.Time // meant for, in the order in which they ran
	late time.Duration
}

func (c *tally) handle(s *Scheduler) {
	handle(s, tick, Policy{}, func(_ context.Context, job *Job) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.runs = append(c.runs, job.ScheduledFor)
		c.late = max(c.late, time.Since(job.ScheduledFor))
		return nil
	})
}

func (c *tally) all() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.runs)
}

// since are the runs that are meant for at or later.
func (c *tally) since(at time.Time) []time.Time {
	return slices.DeleteFunc(c.all(), func(run time.Time) bool { return run.Before(at) })
}

// reset forgets the runs and the lateness.
func (c *tally) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs, c.late = nil, 0
}

// wantEvery checks that the runs are n instants, the first at begin, each once
// and a step after the other.
func wantEvery(t testing.TB, runs []time.Time, begin time.Time, step time.Duration, n int) {
	t.Helper()
	if len(runs) != n {
		t.Errorf("%d runs, want %d", len(runs), n)
	}
	for i, run := range runs {
		if want := begin.Add(time.Duration(i) * step); !run.Equal(want) {
			t.Fatalf("run %d is meant for %v, want %v", i, run, want)
		}
	}
}

// bensheldon/good_job#1543, robfig/cron#94, go-co-op/gocron#789: a timer that
// woke a little early found the same slot again.
func TestCaseB026AnEarlyWakeUpFiresNothingTwice(t *testing.T) {
	slots := scaled(1000, 50)
	r := seedOf(t)
	t.Run("woken just before the slot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
			var c tally
			c.handle(s)
			const nothing Kind[struct{}] = "nothing"
			handle(s, nothing, Policy{}, func(context.Context, *Job) error { return nil })
			begin := time.Now()
			scheduleTick(t, s, Schedule{Name: "s", Spec: "* * * * *"})
			start(t, s)
			for i := range slots {
				slot := begin.Add(time.Duration(i+1) * time.Minute)
				sleepUntil(t, slot.Add(-time.Duration(1+r.IntN(20))*time.Millisecond))
				enqueue(t, s, nothing, struct{}{}, EnqueueOptions{}) // wakes the runner
				synctest.Wait()
				sleepUntil(t, slot)
			}
			time.Sleep(time.Second)
			wantEvery(t, c.all(), begin.Add(time.Minute), time.Minute, slots)
		})
	})
	t.Run("the clock set back just after a firing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
			handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
			begin := time.Now()
			scheduleTick(t, s, Schedule{Name: "s", Spec: "* * * * *"})
			clock := newSteppedClock(t, s)
			time.Sleep(24 * time.Hour)
			var runs []time.Time
			for i := range slots {
				slot := begin.Add(time.Duration(i+1) * time.Minute)
				early := time.Duration(1+r.IntN(20)) * time.Millisecond
				for _, now := range []time.Time{slot.Add(-early), slot.Add(early), slot.Add(-2 * time.Second), slot, slot.Add(time.Second)} {
					runs = append(runs, clock.at(now)...)
				}
			}
			wantEvery(t, runs, begin.Add(time.Minute), time.Minute, slots)
		})
	})
}

// openclaw/openclaw#42640: after a restart, what had run before it ran again.
func TestCaseB028ARestartDoesNotRepeatWhatHasRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "rota.db")
		var c tally
		boot := func() (*Scheduler, func()) {
			s := openAt(t, path, quiet())
			c.handle(s)
			declareTick(t, s, Schedule{Name: "s", Spec: "0 12 * * *"})
			return s, start(t, s)
		}
		s, stop := boot()
		slot := time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)
		sleepUntil(t, slot.Add(30*time.Minute))
		for round := range 5 {
			if round < 2 { // a kill: what it leaves is on the disk as it was
				path = crashCopy(t, s, filepath.Join(dir, fmt.Sprintf("killed-%d.db", round)))
			}
			stop()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s, stop = boot()
			time.Sleep(time.Minute)
		}
		if runs := c.all(); len(runs) != 1 || !runs[0].Equal(slot) {
			t.Errorf("ran for %v", runs)
		}
		wantHistory(t, s, "s", "01T12:00:00 succeeded")
	})
}

// go-co-op/gocron#367: stop and start in one process multiplied the schedules.
func TestCaseB029StopAndStartDoNotMultiplySchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		var c tally
		var goroutines []int
		for _, reopen := range []bool{false, true} {
			s := openAt(t, path, quiet())
			c.handle(s)
			declareTick(t, s, Schedule{Name: "s", Spec: "* * * * * *", Seconds: true})
			for range 5 {
				if reopen {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = openAt(t, path, quiet())
					c.handle(s)
					declareTick(t, s, Schedule{Name: "s", Spec: "* * * * * *", Seconds: true})
				}
				stop := start(t, s)
				time.Sleep(10*time.Second + time.Millisecond)
				synctest.Wait()
				goroutines = append(goroutines, runtime.NumGoroutine())
				if runs := c.since(time.Now().Add(-10 * time.Second)); len(runs) < 9 || len(runs) > 11 {
					t.Errorf("%d runs in ten seconds", len(runs))
				}
				stop()
				synctest.Wait()
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if first, last := goroutines[0], goroutines[len(goroutines)-1]; last > first+3 {
			t.Errorf("goroutines grew: %v", goroutines)
		}
		if runs := c.all(); len(slices.Compact(slices.Clone(runs))) != len(runs) {
			t.Error("an instant ran twice")
		}
	})
}

// riverqueue/river#791: an interval longer than the time between restarts never
// came, because its countdown lived in memory.
func TestCaseB031AnIntervalOutlivesRestarts(t *testing.T) {
	for _, test := range []struct {
		every, restarts, span time.Duration
	}{
		{time.Hour, 20 * time.Minute, 3 * time.Hour},
		{7 * 24 * time.Hour, 24 * time.Hour, 21 * 24 * time.Hour},
	} {
		t.Run(test.every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "rota.db")
				var c tally
				begin := time.Now()
				for time.Since(begin) <= test.span {
					s := openAt(t, path, quiet())
					c.handle(s)
					declareTick(t, s, Schedule{Name: "s", Spec: "@every " + test.every.String()})
					stop := start(t, s)
					time.Sleep(test.restarts)
					stop()
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				wantEvery(t, c.all(), begin.Add(test.every), test.every, 3)
			})
		})
	}
}

// bensheldon/good_job#1484: a deploy exactly at noon lost the noon run.
func TestCaseB032ADeployOverTheSlotLosesNothing(t *testing.T) {
	r := seedOf(t)
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		var c tally
		var s *Scheduler
		boot := func() (stop func()) {
			s = openAt(t, path, quiet())
			c.handle(s)
			declareTick(t, s, Schedule{Name: "s", Spec: "0 12 * * *"})
			return start(t, s)
		}
		stop := boot()
		rounds := scaled(50, 20)
		for round := range rounds {
			noon := time.Date(2000, 1, 1+round, 12, 0, 0, 0, time.UTC)
			offset := func() time.Duration { return time.Duration(r.Int64N(int64(6*time.Second))) - 3*time.Second }
			down, up := noon.Add(offset()), noon.Add(offset())
			if round == 0 {
				down, up = noon.Add(-2*time.Second), noon.Add(3*time.Second)
			}
			if up.Before(down) {
				down, up = up, down
			}
			sleepUntil(t, down)
			stop()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			sleepUntil(t, up)
			stop = boot()
			sleepUntil(t, noon.Add(4*time.Second))
			synctest.Wait()
			if n := len(c.all()); n != round+1 {
				t.Fatalf("after %d noons there are %d runs (down at %v, up at %v)", round+1, n, down, up)
			}
		}
		wantEvery(t, c.all(), time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC), 24*time.Hour, rounds)
	})
}

// robfig/cron#26, Jako/CronManager#67: after an hour's sleep every missed tick
// was played back.
func TestCaseB033AfterASleepThereIsOneCatchUpAndNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := quiet()
		cfg.LeaseTTL = 10 * time.Second
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), cfg)
		var c tally
		c.handle(s)
		begin := time.Now()
		declareTick(t, s, Schedule{Name: "s", Spec: "*/5 * * * * *", Seconds: true})
		start(t, s)
		time.Sleep(time.Minute + time.Second)
		// A runner that gets nothing done for an hour, as in a stopped process:
		// the database is another's.
		release := holdWriteLock(t, s)
		time.Sleep(time.Hour)
		before := len(c.all())
		if before != 12 {
			t.Fatalf("%d runs before and during the sleep", before)
		}
		release()
		time.Sleep(time.Minute)
		if n := len(c.all()) - before; n < 12 || n > 13 {
			t.Errorf("%d runs in the first minute", n)
		}
		synctest.Wait()
		accountFor(t, "s", history(t, s, "s"), instants(mustParseSeconds(t, "*/5 * * * * *"), begin, time.Now()))
	})
}

// mustParseSeconds reads a spec with seconds, in UTC.
func mustParseSeconds(t testing.TB, spec string) Spec {
	t.Helper()
	s, err := ParseSpec(spec, SpecOptions{Seconds: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Kubernetes' CronJob (thoth-station/core#82): after more than 100 missed starts
// it never ran again.
func TestCaseB036ManyMissedFiringsNeitherStopNorDelayASchedule(t *testing.T) {
	for _, test := range []struct {
		spec    string
		seconds bool
		step    time.Duration
	}{
		{"* * * * *", false, time.Minute},
		{"* * * * * *", true, time.Second},
	} {
		for _, missed := range []Missed{MissedOnce, MissedAll, MissedSkip} {
			t.Run(fmt.Sprint(test.step, " ", missed), func(t *testing.T) {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				began := time.Now() // outside of the bubble: the real time
				synctest.Test(t, func(t *testing.T) {
					s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
					var c tally
					c.handle(s)
					declareTick(t, s, Schedule{Name: "s", Spec: test.spec, Seconds: test.seconds, Missed: missed, CatchUp: 20})
					runDue(t, s)
					time.Sleep(3 * 24 * time.Hour)
					up := time.Now()
					start(t, s)
					synctest.Wait()
					if n, want := len(c.all()), map[Missed]int{MissedOnce: 1, MissedAll: 20, MissedSkip: 0}[missed]; n != want {
						t.Errorf("%d runs for what was missed, want %d", n, want)
					}
					c.reset()
					time.Sleep(5*test.step + time.Millisecond)
					synctest.Wait()
					wantEvery(t, c.all(), up.Add(test.step), test.step, 5)
					if c.late > 0 {
						t.Errorf("a regular firing was %v late", c.late)
					}
				})
				if took := time.Since(began); took > 10*time.Second { // the bar is 2 s, on a machine that does nothing else
					t.Errorf("it took %v", took)
				} else {
					t.Logf("it took %v", took)
				}
				runtime.ReadMemStats(&after)
				if grown := int64(after.TotalAlloc-before.TotalAlloc) >> 20; grown > 64 {
					t.Errorf("%d MiB were allocated", grown)
				}
			})
		}
	}
}

// timgit/pg-boss#327, #914: a look back of a minute, taken every minute or later,
// missed slots.
func TestCaseB037SlotsBetweenTheLooksOfShortLivedRunners(t *testing.T) {
	r := seedOf(t)
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "rota.db")
		var c tally
		begin := time.Now()
		var cuts []time.Time
		for range scaled(200, 40) {
			cuts = append(cuts, begin.Add(time.Duration(r.Int64N(int64(time.Hour)))))
		}
		slices.SortFunc(cuts, time.Time.Compare)
		cuts = append(cuts, begin.Add(time.Hour))
		for _, cut := range cuts {
			s := openAt(t, path, quiet()) // which never polls
			c.handle(s)
			declareTick(t, s, Schedule{Name: "s", Spec: "30 * * * * *", Seconds: true})
			stop := start(t, s)
			sleepUntil(t, cut)
			stop()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		wantEvery(t, c.all(), begin.Add(30*time.Second), time.Minute, 60)
	})
}

// acaloiaro/neoq, commit b401809: a job whose deadline lay before its time was
// put off for ever.
func TestCaseB038ADeadlineThatCannotBeMetEndsTheJobOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		runs := 0
		handle(s, tick, Policy{}, func(context.Context, *Job) error {
			runs++
			return errors.New("no")
		})
		// An ad-hoc job's bound counts from its first start, so a late RunAt
		// can't exceed it.
		id := enqueue(t, s, tick, struct{}{}, EnqueueOptions{
			RunAt: time.Now().Add(time.Hour),
			Retry: &Retry{Base: 2 * time.Minute, MaxElapsed: time.Minute},
		})
		start(t, s)
		time.Sleep(24 * time.Hour)
		if job := jobOf(t, s, id); job.State != Dead || job.Reason != reasonExpired || job.Attempt != 1 || runs != 1 {
			t.Errorf("it is %s (%s) after %d attempts and %d runs", job.State, job.Reason, job.Attempt, runs)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		var c tally
		c.handle(s)
		declareTick(t, s, Schedule{Name: "s", Spec: "0 * * * *", Deadline: time.Microsecond})
		runDue(t, s)
		time.Sleep(90 * time.Minute) // the deadline has passed
		for range 100 {
			runDue(t, s)
		}
		wantHistory(t, s, "s", "01T01:00:00 cancelled/too_late")
		sleepUntil(t, time.Date(2000, 1, 1, 2, 0, 0, 0, time.UTC))
		runDue(t, s)
		wantHistory(t, s, "s", "01T01:00:00 cancelled/too_late", "01T02:00:00 succeeded")
	})
}

// aptible/supercronic#6: everything ran one iteration late.
func TestCaseB049TheVeryNextSlotFires(t *testing.T) {
	for _, what := range []string{"the runner starts", "the schedule is made"} {
		t.Run(what+" 100 ms before the slot", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
				var c tally
				c.handle(s)
				first := time.Now().Add(10 * time.Minute)
				if what == "the schedule is made" {
					start(t, s)
				}
				sleepUntil(t, first.Add(-100*time.Millisecond))
				if what == "the schedule is made" {
					scheduleTick(t, s, Schedule{Name: "s", Spec: "* * * * *"})
				} else {
					declareTick(t, s, Schedule{Name: "s", Spec: "* * * * *"})
					start(t, s)
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				wantEvery(t, c.all(), first, time.Minute, 5)
				if c.late > time.Second {
					t.Errorf("a firing was %v late", c.late)
				}
				for _, o := range history(t, s, "s") {
					if o.job.StartedAt.Sub(o.slot) > time.Second || !o.job.RunAt.Equal(o.slot) {
						t.Errorf("%v started at %v", o, o.job.StartedAt)
					}
				}
			})
		})
	}
}

// riverqueue/river#73, go-co-op/gocron#650, #696: a slot that passed while it was
// computed armed a timer with a negative interval, or put a job into the past.
func TestCaseB104ASlowDatabaseNeitherStopsASchedulerNorBringsBackWhatWasRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		inFlight := make(chan struct{})
		handle(s, tick, Policy{}, func(_ context.Context, job *Job) error {
			if job.Schedule == "removed" {
				close(inFlight)
				time.Sleep(30 * time.Second)
			}
			return nil
		})
		begin := time.Now()
		for i := range 5 {
			declareTick(t, s, Schedule{Name: fmt.Sprint("s", i), Spec: "* * * * * *", Seconds: true})
		}
		declareTick(t, s, Schedule{Name: "removed", Spec: "* * * * * *", Seconds: true, Overlap: OverlapAllow, NotAfter: begin.Add(time.Hour)})
		start(t, s)
		<-inFlight
		if err := s.Unschedule(t.Context(), "removed", By{}); err != nil {
			t.Fatal(err)
		}
		for range 30 { // two seconds of every two and a bit, it can't be written
			release := holdWriteLock(t, s)
			time.Sleep(2 * time.Second)
			release()
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i := range 5 {
			name := fmt.Sprint("s", i)
			rows := history(t, s, name)
			if len(rows) < 60 {
				t.Errorf("%s has run %d times", name, len(rows))
			}
			if last := rows[len(rows)-1]; time.Since(last.slot) > 2*time.Second {
				t.Errorf("%s has stopped after %v", name, last)
			}
			accountFor(t, name, rows, instants(mustParseSeconds(t, "* * * * * *"), begin, rows[len(rows)-1].slot))
		}
		if head := nextOf(t, s, "removed"); head != nil {
			t.Errorf("the removed schedule has come back: %+v", head)
		}
		if rows := history(t, s, "removed"); len(rows) != 1 || rows[0].job.State != Succeeded {
			t.Errorf("the removed schedule's run: %v", rows)
		}
	})
}

// robfig/cron#206: the timer was not set anew when what it waited for went away,
// or something earlier came.
func TestCaseB109TheRunnerSeesWhatChangesWhileItSleeps(t *testing.T) {
	const poll = 500 * time.Millisecond
	for _, test := range []struct {
		sentence string
		change   func(t *testing.T, s, other *Scheduler)
		want     string // what begins in five seconds
	}{
		{"a schedule that another process adds", func(t *testing.T, _, other *Scheduler) {
			scheduleTick(t, other, Schedule{Name: "soon", Spec: "5 * * * * *", Seconds: true})
		}, "soon"},
		{"a job with a delay", func(t *testing.T, s, _ *Scheduler) {
			enqueue(t, s, tick, struct{}{}, EnqueueOptions{RunAt: time.Now().Add(5 * time.Second)})
		}, ""},
		{"a job with a delay, from another process", func(t *testing.T, _, other *Scheduler) {
			enqueue(t, other, tick, struct{}{}, EnqueueOptions{RunAt: time.Now().Add(5 * time.Second)})
		}, ""},
		{"the schedule is removed", func(t *testing.T, s, _ *Scheduler) {
			if err := s.Unschedule(t.Context(), "ten", By{}); err != nil {
				t.Fatal(err)
			}
		}, "none"},
		{"the schedule is removed by another process", func(t *testing.T, _, other *Scheduler) {
			if err := other.Unschedule(t.Context(), "ten", By{}); err != nil {
				t.Fatal(err)
			}
		}, "none"},
		{"the schedule is changed to be due sooner", func(t *testing.T, s, _ *Scheduler) {
			scheduleTick(t, s, Schedule{Name: "ten", Spec: "5 * * * * *", Seconds: true})
		}, "ten"},
		{"the schedule is changed by another process", func(t *testing.T, _, other *Scheduler) {
			scheduleTick(t, other, Schedule{Name: "ten", Spec: "5 * * * * *", Seconds: true})
		}, "ten"},
	} {
		t.Run(test.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "rota.db")
				cfg := quiet()
				cfg.PollInterval = poll
				s, other := openAt(t, path, cfg), openAt(t, path, cfg)
				var mu sync.Mutex
				began := make(map[string][]time.Time)
				handle(s, tick, Policy{}, func(_ context.Context, job *Job) error {
					mu.Lock()
					defer mu.Unlock()
					began[job.Schedule] = append(began[job.Schedule], time.Now())
					return nil
				})
				begin := time.Now()
				scheduleTick(t, s, Schedule{Name: "ten", Spec: "*/10 * * * *"})
				scheduleTick(t, s, Schedule{Name: "eleven", Spec: "11 * * * *"})
				start(t, s)
				synctest.Wait() // it sleeps until the tenth minute
				test.change(t, s, other)
				sleepUntil(t, begin.Add(11*time.Minute+time.Second))
				mu.Lock()
				defer mu.Unlock()
				if test.want != "none" {
					if first := began[test.want]; len(first) == 0 || first[0].Sub(begin.Add(5*time.Second)).Abs() > poll {
						t.Errorf("%q began at %v", test.want, first)
					}
				} else if len(began["ten"]) > 0 {
					t.Errorf("what was removed began at %v", began["ten"])
				}
				if at := began["eleven"]; len(at) != 1 || at[0].Sub(begin.Add(11*time.Minute)).Abs() > poll {
					t.Errorf("the other schedule began at %v", at)
				}
				if !strings.Contains(test.sentence, "schedule is") {
					if at := began["ten"]; len(at) != 1 || at[0].Sub(begin.Add(10*time.Minute)).Abs() > poll {
						t.Errorf("the schedule of the tenth minute began at %v", at)
					}
				}
			})
		})
	}
}
