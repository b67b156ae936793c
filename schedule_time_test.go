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
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// quiet is a configuration for simulated time: nothing polls, a renewal of the
// lease is rare, and the log is not kept.
func quiet() Config {
	return Config{
		PollInterval: -1, LeaseTTL: 24 * time.Hour, Durability: DurabilityNormal,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// scaled is how often a test repeats something: n times, or fewer under the race
// detector.
func scaled(n, underRace int) int {
	if raceEnabled {
		return underRace
	}
	return n
}

// sleepUntil moves the bubble's time to at.
func sleepUntil(t testing.TB, at time.Time) {
	t.Helper()
	d := time.Until(at)
	if d < 0 {
		t.Fatalf("it is %v already, %v has passed", time.Now().UTC(), at)
	}
	time.Sleep(d)
}

// seedOf is the seed of a random test: a new one, or the one that a failure
// printed, from the environment variable ROTA_SEED.
func seedOf(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ROTA_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d; run it again with ROTA_SEED=%[1]d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// occasion is what became of one occurrence of a schedule, as its row and the
// evidence of its first attempt tell it.
type occasion struct {
	job       *Job
	slot      time.Time
	coalesced int // later firings that got no row of their own
	from, to  time.Time
	saving    string // what daylight saving did to it
}

// String is short, so that a test can compare a whole history: its instant, its
// fate, and how many others it stands for.
func (o occasion) String() string {
	text := o.slot.Format("02T15:04:05 ") + string(o.job.State)
	if o.job.State == Cancelled {
		text += "/" + o.job.Reason
	}
	if o.coalesced > 0 {
		text += fmt.Sprintf(" +%d (%s to %s)", o.coalesced, o.from.Format("02T15:04:05"), o.to.Format("02T15:04:05"))
	}
	return text
}

// history is what became of the schedule's firings so far, without the one that
// is next, in the order of their instants. Times are in UTC.
func history(t testing.TB, s *Scheduler, schedule string) []occasion {
	t.Helper()
	notes := make(map[string]string)
	err := eachRow(context.Background(), s.DB(), `
		SELECT job_id, note FROM rota_attempts
		WHERE number = 1 AND note IS NOT NULL AND job_id IN (SELECT id FROM rota_jobs WHERE schedule = $1)`,
		[]any{schedule}, func(scan func(...any) error) error {
			var id, note string
			err := scan(&id, &note)
			notes[id] = note
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	var all []occasion
	for job := range jobsOf(t, s, Filter{Schedule: schedule}) {
		if job.head {
			continue
		}
		o := occasion{job: job, slot: job.ScheduledFor}
		if text := notes[job.ID]; text != "" {
			var note struct {
				Coalesced any       `json:"coalesced"`
				From      time.Time `json:"coalesced_from"`
				To        time.Time `json:"coalesced_to"`
				Saving    string    `json:"daylight_saving"`
			}
			if err := json.Unmarshal([]byte(text), &note); err != nil {
				t.Fatal(err)
			}
			switch n := note.Coalesced.(type) {
			case float64:
				o.coalesced = int(n)
			case string:
				o.coalesced = maxCoalesced
			}
			o.from, o.to, o.saving = note.From.UTC(), note.To.UTC(), note.Saving
		}
		all = append(all, o)
	}
	slices.SortStableFunc(all, func(a, b occasion) int { return a.slot.Compare(b.slot) })
	return all
}

// wantHistory compares the schedule's history with lines as occasion writes
// them.
func wantHistory(t testing.TB, s *Scheduler, schedule string, want ...string) {
	t.Helper()
	var got []string
	for _, o := range history(t, s, schedule) {
		got = append(got, o.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("history of %s:\n got %s\nwant %s", schedule, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// nextOf is the schedule's next occurrence, or nil if it has none.
func nextOf(t testing.TB, s *Scheduler, schedule string) *Job {
	t.Helper()
	heads, err := s.Schedules(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, head := range heads {
		if head.Schedule == schedule {
			return head
		}
	}
	return nil
}

// actionsOn are the names of the actions on the schedule, with their actors.
func actionsOn(t testing.TB, s *Scheduler, schedule string) (names []string) {
	t.Helper()
	all, err := s.Actions(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.Schedule == schedule {
			names = append(names, a.Action+" by "+a.Actor)
		}
	}
	return names
}

// edit changes the tables behind the scheduler's back.
func edit(t testing.TB, s *Scheduler, query string, args ...any) {
	t.Helper()
	res, err := s.DB().ExecContext(context.Background(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); n == 0 || err != nil {
		t.Fatalf("%s: %d rows, %v", query, n, err)
	}
}

const tick Kind[struct{}] = "tick"

// declareTick makes the schedule part of the program, or fails the test.
func declareTick(t testing.TB, s *Scheduler, sch Schedule) {
	t.Helper()
	if err := tick.Declare(s, sch, struct{}{}); err != nil {
		t.Fatal(err)
	}
}

func scheduleTick(t testing.TB, s *Scheduler, sch Schedule) {
	t.Helper()
	if err := tick.Schedule(context.Background(), s, sch, struct{}{}); err != nil {
		t.Fatal(err)
	}
}

// A decade of the clock in four zones.

// minuteReference finds the firings of "M H * * *", which names its time, or,
// with hour below zero, of "*/M * * * *", by looking at every minute of the
// span and at nothing of Rota's.
func minuteReference(t testing.TB, zone string, hour, minute int, begin, end time.Time) []time.Time {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	wall := func(at time.Time) time.Time { // what the clock shows, as if it were UTC
		_, offset := at.In(loc).Zone()
		return at.Add(time.Duration(offset) * time.Second).UTC()
	}
	var all []time.Time
	shown := time.Time{} // the last minute for which the fixed time has fired
	before := wall(begin)
	for at := begin.Add(time.Minute); !at.After(end); at = at.Add(time.Minute) {
		now := wall(at)
		if hour < 0 {
			// Steps of the clock here are multiples of the interval, so what a
			// gap swallows falls together with its end.
			if now.Minute()%minute == 0 {
				all = append(all, at)
			}
			continue
		}
		// Every minute that the clock shows now for the first time, or skips.
		for m := before.Add(time.Minute); !m.After(now); m = m.Add(time.Minute) {
			if m.Hour() == hour && m.Minute() == minute && m.After(shown) {
				all, shown = append(all, at), m
				break
			}
		}
		before = now
	}
	return all
}

// instants are the firings after begin and not after end.
func instants(spec Spec, begin, end time.Time) (all []time.Time) {
	for f := range spec.Upcoming(begin) {
		if f.At.After(end) {
			break
		}
		all = append(all, f.At)
	}
	return all
}

// accountFor walks a schedule's rows in order: each of the slots must be a row
// of its own, or one of those that the row before it names, and nothing else may
// be on record.
func accountFor(t testing.TB, name string, rows []occasion, slots []time.Time) {
	t.Helper()
	for _, o := range rows {
		if len(slots) == 0 || !o.slot.Equal(slots[0]) {
			t.Fatalf("%s: row at %v; the reference's next are %v", name, o, slots[:min(3, len(slots))])
		}
		slots = slots[1:]
		if o.coalesced > len(slots) || o.coalesced > 0 && (!slots[0].Equal(o.from) || !slots[o.coalesced-1].Equal(o.to)) {
			t.Fatalf("%s: %v names others than the next %d of the reference", name, o, o.coalesced)
		}
		slots = slots[o.coalesced:]
	}
	if len(slots) > 0 {
		t.Errorf("%s: %d firings are not on record, from %v on", name, len(slots), slots[0])
	}
}

// zoneChanges are the hours in which a zone's clock changes.
func zoneChanges(t testing.TB, zone string, begin, end time.Time) (changes []time.Time) {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	_, offset := begin.In(loc).Zone()
	for at := begin.Truncate(time.Hour); at.Before(end); at = at.Add(time.Hour) {
		if _, now := at.In(loc).Zone(); now != offset {
			changes, offset = append(changes, at), now
		}
	}
	return changes
}

// decade is a simulation of one database's years.
type decade struct {
	t         *testing.T
	r         *rand.Rand
	path      string
	s         *Scheduler
	interrupt bool // the next handlers wait until they are stopped

	// What has happened, so that no run is too quiet to prove anything.
	restarts, stopped, early int

	mu  sync.Mutex     // guards ran; handlers run side by side
	ran map[string]int // handlers that returned nil, by schedule and instant
}

var decadeZones = []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"}

// boot starts the program anew on the same file.
func (d *decade) boot() {
	d.s = openAt(d.t, d.path, func() Config { c := quiet(); c.Grace = -1; return c }())
	handle(d.s, tick, Policy{}, func(ctx context.Context, job *Job) error {
		if d.interrupt {
			<-ctx.Done()
			return ctx.Err()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.ran[job.Schedule+" "+job.ScheduledFor.Format(time.RFC3339)]++
		return nil
	})
	for _, zone := range decadeZones {
		declareTick(d.t, d.s, Schedule{Name: "nightly:" + zone, Spec: "30 2 * * *", Zone: zone, Missed: MissedAll})
		declareTick(d.t, d.s, Schedule{Name: "quarter:" + zone, Spec: "*/15 * * * *", Zone: zone})
	}
}

// step runs what is due, now and then stopped in the middle of it.
func (d *decade) step() {
	if d.r.IntN(40) == 0 {
		d.stopped++
		d.interrupt = true
		ctx, cancel := context.WithTimeout(d.t.Context(), time.Second)
		_, err := d.s.RunDue(ctx)
		cancel()
		d.interrupt = false
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			d.t.Fatal(err)
		}
	}
	runDue(d.t, d.s)
	if d.r.IntN(20) == 0 {
		d.restart(time.Duration(d.r.Int64N(int64(3 * time.Hour))))
	}
}

func (d *decade) restart(down time.Duration) {
	d.restarts++
	if err := d.s.Close(); err != nil {
		d.t.Fatal(err)
	}
	if d.r.IntN(2) == 0 {
		down = 0 // in the same second
	}
	time.Sleep(down)
	d.boot()
}

func TestADecadeInFourZonesLosesNoFiringAndDoublesNone(t *testing.T) {
	t.Parallel()
	days := scaled(3652, 60)
	r := seedOf(t)
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, time.Date(2021, 10, 1+r.IntN(15), r.IntN(24), r.IntN(60), r.IntN(60), 1+r.IntN(1e9-1), time.UTC))
		begin := time.Now().UTC()
		end := begin.AddDate(0, 0, days)
		d := &decade{t: t, r: r, path: filepath.Join(t.TempDir(), "rota.db"), ran: make(map[string]int)}
		d.boot()
		runDue(t, d.s) // writes the schedules down
		var changes []time.Time
		for _, zone := range decadeZones {
			changes = append(changes, zoneChanges(t, zone, begin, end)...)
		}
		deadWeek := begin.AddDate(0, 0, 1+r.IntN(days-10))
		weekIsOver := false

		for time.Now().Before(end) {
			now := time.Now()
			if !weekIsOver && now.After(deadWeek) {
				weekIsOver = true
				if err := d.s.Close(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(7 * 24 * time.Hour)
				d.boot()
				runDue(t, d.s)
				continue
			}
			next := now.Truncate(15 * time.Minute).Add(15 * time.Minute)
			switch near := slices.ContainsFunc(changes, func(at time.Time) bool { return now.Sub(at).Abs() < 2*time.Hour }); {
			case !near && r.IntN(8) > 0:
				next = next.Add(time.Duration(r.IntN(90*4)) * 15 * time.Minute) // a runner that had a long pause
			case r.IntN(4) == 0 && next.Sub(now) > time.Millisecond:
				d.early++
				next = next.Add(-time.Duration(1 + r.IntN(int(time.Millisecond)))) // a timer that went off too soon
			case r.IntN(4) == 0:
				next = next.Add(time.Duration(r.Int64N(int64(time.Minute))))
			}
			sleepUntil(t, next)
			d.step()
		}
		if least := days / 365; !weekIsOver || d.restarts < least || d.stopped < least || d.early < least {
			t.Errorf("the decade was too quiet: dead week %v, %d restarts, %d stops, %d early timers", weekIsOver, d.restarts, d.stopped, d.early)
		}
		// What has come and not been looked at yet.
		runDue(t, d.s)
		d.check(begin, time.Now())
	})
}

// check holds every schedule's rows against the reference: walked in order, each
// instant is a row of its own or one of those that the row before it names.
func (d *decade) check(begin, end time.Time) {
	d.t.Helper()
	t := d.t
	for _, zone := range decadeZones {
		for name, slots := range map[string][]time.Time{
			"nightly:" + zone: minuteReference(t, zone, 2, 30, begin.Truncate(time.Minute), end),
			"quarter:" + zone: minuteReference(t, zone, -1, 15, begin.Truncate(time.Minute), end),
		} {
			spec := mustParse(t, map[byte]string{'n': "30 2 * * *", 'q': "*/15 * * * *"}[name[0]], zone)
			if !slices.EqualFunc(instants(spec, begin, end), slots, time.Time.Equal) {
				t.Fatalf("%s: Upcoming gives other firings than a look at every minute", name)
			}
			rows := history(t, d.s, name)
			for _, o := range rows {
				if n := d.ran[name+" "+o.slot.Format(time.RFC3339)]; o.job.State != Succeeded || n != 1 {
					t.Errorf("%s: %v ran %d times", name, o, n)
				}
				if name[0] == 'n' && o.coalesced > 0 {
					t.Errorf("%s: %v: MissedAll coalesced what it could have made up", name, o)
				}
			}
			accountFor(t, name, rows, slots)
			t.Logf("%s: %d firings, %d rows", name, len(slots), len(rows))
		}
	}
}

// The slot: what comes next follows from the slot before.

// TestAPlanLeavesNoFiringUnnamed draws schedules, instants and times of wake-up,
// those before the slot included, and asks of every plan that the firings from
// the slot to the next are exactly the one that it decides about and those that
// it names.
func TestAPlanLeavesNoFiringUnnamed(t *testing.T) {
	r := seedOf(t)
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	begin := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 3000 {
		job := &Job{
			Kind: "tick", Schedule: "s", Args: json.RawMessage("{}"),
			Spec: pick("* * * * *", "*/15 * * * *", "30 2 * * *", "0 3 * * 1-5", "15,45 1,2 * * *", "@hourly", "@every 7m", "@every 36h"),
			Zone: pick("", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"),
		}
		job.rule = rule{
			Missed: Missed(pick("once", "all", "skip")), Overlap: OverlapWait,
			CatchUp: 1 + r.IntN(4), Caught: r.IntN(4), Anchor: micros(begin),
			Deadline: int64(r.IntN(3)) * time.Hour.Microseconds(),
		}
		spec, err := job.parseSpec()
		if err != nil {
			t.Fatal(err)
		}
		all := job.rule.firings(spec)
		slot, ok := all.next(begin.Add(time.Duration(r.Int64N(int64(365 * 24 * time.Hour)))))
		if !ok {
			t.Fatalf("%s has ended", job.Spec)
		}
		job.ScheduledFor, job.RunAt = slot.UTC(), slot.UTC()
		now := slot.Add(time.Duration(r.Int64N(int64([]time.Duration{time.Second, time.Hour, 50 * time.Hour}[r.IntN(3)]))))
		if r.IntN(3) == 0 {
			now = slot.Add(-time.Duration(r.Int64N(int64(3 * time.Hour)))) // the clock was set back
		}
		if r.IntN(4) == 0 {
			job.rule.PausedTo = micros(slot.Add(time.Duration(r.Int64N(int64(20 * time.Hour)))))
		}
		plan, err := planNext(t.Context(), nil, job, now)
		if err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("%s %s %+v slot %v now %v", job.Spec, job.Zone, job.rule, slot, now)
		if !plan.next.slot.After(slot) {
			t.Fatalf("%s: the next slot is %v", what, plan.next.slot)
		}
		var between []time.Time
		for at, ok := all.next(slot); ok && at.Before(plan.next.slot); at, ok = all.next(at) {
			between = append(between, at)
		}
		if at, ok := all.next(plan.next.slot.Add(-1)); !ok || !at.Equal(plan.next.slot) {
			t.Fatalf("%s: the next slot %v is no firing", what, plan.next.slot)
		}
		n, _ := plan.notes["coalesced"].(int)
		if n != len(between) {
			t.Fatalf("%s: %d firings are coalesced, %d lie between it and %v", what, n, len(between), plan.next.slot)
		}
		if n > 0 && (!plan.notes["coalesced_from"].(time.Time).Equal(between[0]) || !plan.notes["coalesced_to"].(time.Time).Equal(between[n-1])) {
			t.Fatalf("%s: the range is %v, want %v to %v", what, plan.notes, between[0], between[n-1])
		}
		if !now.After(slot) && job.rule.PausedTo < micros(slot) && (plan.skip != "" || n > 0) {
			t.Fatalf("%s: on time, and yet %q, %v", what, plan.skip, plan.notes)
		}
	}
}

// steppedClock claims and ends what is due by a clock that the test sets.
type steppedClock struct {
	t    *testing.T
	s    *Scheduler
	term *term
}

func newSteppedClock(t *testing.T, s *Scheduler) *steppedClock {
	t.Helper()
	runDue(t, s) // declared schedules are written down, and the lease has a token
	lease, err := readLease(t.Context(), s.DB())
	if err != nil {
		t.Fatal(err)
	}
	return &steppedClock{t, s, newTerm(s, &contest{s: s}, lease.Token)}
}

// at is one look at the table at that time: the instants of the occurrences
// that it ran.
func (c *steppedClock) at(now time.Time) (ran []time.Time) {
	c.t.Helper()
	err := c.s.writer.do(c.t.Context(), func(ctx context.Context, tx Tx) error {
		kinds, _ := c.term.wants(now)
		f, err := c.term.claimTx(ctx, tx, kinds, 10, false, now)
		if err != nil {
			return err
		}
		for _, job := range f.jobs {
			ran = append(ran, job.ScheduledFor)
			if err := job.run.close(classify(nil, nil)).write(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return ran
}

func TestAClockThatIsSetBackOrRunsAheadNeitherLosesNorDoublesAFiring(t *testing.T) {
	r := seedOf(t)
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		scheduleTick(t, s, Schedule{Name: "s", Spec: "* * * * *"})
		clock := newSteppedClock(t, s)
		begin := time.Now()
		time.Sleep(30 * 24 * time.Hour) // the stepped clock stays behind that of the evidence
		now, farthest, back := begin, begin, 0
		for range scaled(2000, 300) {
			switch r.IntN(20) {
			case 0:
				now = now.Add(-time.Duration(r.Int64N(int64(5 * time.Minute))))
				back++
			case 1:
				now = now.Add(time.Duration(r.Int64N(int64(10 * time.Minute))))
			case 2: // just before the slot
				now = now.Truncate(time.Minute).Add(time.Minute - time.Millisecond)
			default:
				now = now.Add(time.Duration(r.Int64N(int64(40 * time.Second))))
			}
			farthest = later(farthest, now)
			for _, slot := range clock.at(now) {
				if slot.After(now) {
					t.Fatalf("%v ran at %v", slot, now)
				}
			}
		}
		if back < scaled(50, 5) {
			t.Errorf("the clock was set back only %d times", back)
		}
		accountFor(t, "s", history(t, s, "s"), instants(mustParse(t, "* * * * *", ""), begin, farthest))
	})
}

// Missed firings.

// afterDowntime declares an hourly schedule at 00:00:00, is down from 00:30 until
// 12:00:10, and then runs what is due.
func afterDowntime(t *testing.T, sch Schedule, check func(t *testing.T, s *Scheduler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		sch.Name, sch.Spec = "s", "0 * * * *"
		declareTick(t, s, sch)
		runDue(t, s)
		sleepUntil(t, time.Date(2000, 1, 1, 12, 0, 10, 0, time.UTC))
		runDue(t, s)
		check(t, s)
		sleepUntil(t, time.Date(2000, 1, 1, 13, 0, 0, 0, time.UTC))
		runDue(t, s)
		rows := history(t, s, "s")
		if got := rows[len(rows)-1].String(); got != "01T13:00:00 succeeded" {
			t.Errorf("the next regular firing: %s", got)
		}
	})
}

func TestMissedFiringsAreDealtWithByTheirPolicy(t *testing.T) {
	each := func(fate string, hours ...int) (lines []string) {
		for _, h := range hours {
			lines = append(lines, fmt.Sprintf("01T%02d:00:00 %s", h, fate))
		}
		return lines
	}
	for _, test := range []struct {
		sentence string
		schedule Schedule
		want     []string
	}{
		{"once runs the first late and names the others", Schedule{},
			each("succeeded +11 (01T02:00:00 to 01T12:00:00)", 1)},
		{"all runs each", Schedule{Missed: MissedAll},
			each("succeeded", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)},
		{"all runs as many as its limit, which counts them all", Schedule{Missed: MissedAll, CatchUp: 12},
			each("succeeded", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)},
		{"all runs the oldest up to its limit and names the rest in the last of them", Schedule{Missed: MissedAll, CatchUp: 3},
			slices.Concat(each("succeeded", 1, 2), each("succeeded +9 (01T04:00:00 to 01T12:00:00)", 3))},
		{"all with a limit of one is once", Schedule{Missed: MissedAll, CatchUp: 1},
			each("succeeded +11 (01T02:00:00 to 01T12:00:00)", 1)},
		{"skip runs none", Schedule{Missed: MissedSkip},
			each("cancelled/too_late +11 (01T02:00:00 to 01T12:00:00)", 1)},
		{"a deadline leaves out what is too late, and runs once what is not", Schedule{Deadline: 3 * time.Hour},
			slices.Concat(each("cancelled/too_late +8 (01T02:00:00 to 01T09:00:00)", 1), each("succeeded +2 (01T11:00:00 to 01T12:00:00)", 10))},
		{"a deadline with all makes up each that is not too late", Schedule{Missed: MissedAll, Deadline: 3 * time.Hour},
			slices.Concat(each("cancelled/too_late +8 (01T02:00:00 to 01T09:00:00)", 1), each("succeeded", 10, 11, 12))},
		{"a deadline that every missed firing exceeds", Schedule{Deadline: 9 * time.Second},
			each("cancelled/too_late +11 (01T02:00:00 to 01T12:00:00)", 1)},
		{"bounds end the catching up", Schedule{NotAfter: time.Date(2000, 1, 1, 13, 0, 0, 0, time.UTC), Missed: MissedAll},
			each("succeeded", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)},
		{"firings before NotBefore were never missed", Schedule{NotBefore: time.Date(2000, 1, 1, 9, 0, 0, 0, time.UTC)},
			each("succeeded +3 (01T10:00:00 to 01T12:00:00)", 9)},
	} {
		t.Run(test.sentence, func(t *testing.T) {
			afterDowntime(t, test.schedule, func(t *testing.T, s *Scheduler) { wantHistory(t, s, "s", test.want...) })
		})
	}
}

func TestMadeUpFiringsStayWithinTheLimitWhateverOverlaps(t *testing.T) {
	for _, overlap := range []Overlap{OverlapWait, OverlapSkip, OverlapAllow} {
		t.Run(string(overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
				handle(s, tick, Policy{}, func(context.Context, *Job) error {
					time.Sleep(20 * time.Second)
					return nil
				})
				declareTick(t, s, Schedule{Name: "s", Spec: "* * * * *", Missed: MissedAll, CatchUp: 5, Overlap: overlap})
				begin := time.Now()
				runDue(t, s)
				time.Sleep(1000*time.Minute + time.Second)
				runDue(t, s)
				rows := history(t, s, "s")
				if len(rows) > 7 { // five, and those that came while they ran
					t.Errorf("1000 missed firings with a limit of 5 left %d rows", len(rows))
				}
				accountFor(t, "s", rows, instants(mustParse(t, "* * * * *", ""), begin, time.Now()))
			})
		})
	}
}

func TestMoreMissedFiringsThanAreCountedAreNamedByTheirRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
		handle(s, tick, Policy{}, func(context.Context, *Job) error { return nil })
		declareTick(t, s, Schedule{Name: "s", Spec: "* * * * * *", Seconds: true})
		runDue(t, s)
		time.Sleep(3 * time.Hour)
		runDue(t, s)
		wantHistory(t, s, "s", "01T00:00:01 succeeded +10000 (01T00:00:02 to 01T03:00:00)")
	})
}

func TestWhatWasCoalescedIsOnRecordAlsoIfTheProcessDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := openAt(t, filepath.Join(dir, "rota.db"), quiet())
		handle(s, tick, Policy{}, func(ctx context.Context, _ *Job) error {
			<-ctx.Done()
			return ctx.Err()
		})
		scheduleTick(t, s, Schedule{Name: "s", Spec: "0 * * * *"})
		time.Sleep(5*time.Hour + time.Minute)
		start(t, s)
		synctest.Wait()
		crashed := openAt(t, crashCopy(t, s, filepath.Join(dir, "crashed.db")), quiet())
		handle(crashed, tick, Policy{}, func(context.Context, *Job) error { return nil })
		runDue(t, crashed)
		wantHistory(t, crashed, "s", "01T01:00:00 succeeded +4 (01T02:00:00 to 01T05:00:00)")
	})
}

// crashCopy copies the database as it lies on the disk in this instant, as a
// kill would leave it.
func crashCopy(t testing.TB, s *Scheduler, to string) string {
	t.Helper()
	from := s.store.(*sqliteStore).path
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(from + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// Overlapping firings.

// during runs a schedule of every minute whose handler takes that long, for ten
// minutes after its first firing, and returns its history.
func during(t *testing.T, sch Schedule, takes time.Duration) (lines []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := quiet()
		cfg.Grace = time.Hour
		s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), cfg)
		handle(s, tick, Policy{}, func(context.Context, *Job) error {
			time.Sleep(takes)
			return nil
		})
		sch.Name, sch.Spec = "s", "* * * * *"
		declareTick(t, s, sch)
		begin := time.Now()
		stop := start(t, s)
		time.Sleep(10*time.Minute + 15*time.Second)
		rows := history(t, s, "s")
		for _, o := range rows {
			lines = append(lines, o.String()+o.job.StartedAt.Format(" @04:05"))
		}
		accountFor(t, "s", rows, instants(mustParse(t, "* * * * *", ""), begin, later(rows[len(rows)-1].slot, rows[len(rows)-1].to)))
		stop()
	})
	return lines
}

func TestOverlappingFiringsAreDealtWithByTheirPolicy(t *testing.T) {
	for _, test := range []struct {
		sentence string
		schedule Schedule
		want     []string
	}{
		{"wait lets one wait and names the others", Schedule{}, []string{
			"01T00:01:00 succeeded @01:00",
			"01T00:02:00 succeeded +2 (01T00:03:00 to 01T00:04:00) @04:30",
			"01T00:05:00 running +3 (01T00:06:00 to 01T00:08:00) @08:00",
		}},
		{"wait with a deadline leaves out what waited too long", Schedule{Deadline: time.Minute}, []string{
			"01T00:01:00 succeeded @01:00",
			"01T00:02:00 cancelled/too_late +1 (01T00:03:00 to 01T00:03:00) @04:30",
			"01T00:04:00 succeeded @04:30",
			"01T00:05:00 cancelled/too_late +1 (01T00:06:00 to 01T00:06:00) @08:00",
			"01T00:07:00 running +1 (01T00:08:00 to 01T00:08:00) @08:00",
		}},
		{"skip leaves a row for each that it leaves out", Schedule{Overlap: OverlapSkip}, []string{
			"01T00:01:00 succeeded @01:00",
			"01T00:02:00 cancelled/overlap @02:00",
			"01T00:03:00 cancelled/overlap @03:00",
			"01T00:04:00 cancelled/overlap @04:00",
			"01T00:05:00 succeeded @05:00",
			"01T00:06:00 cancelled/overlap @06:00",
			"01T00:07:00 cancelled/overlap @07:00",
			"01T00:08:00 cancelled/overlap @08:00",
			"01T00:09:00 running @09:00",
			"01T00:10:00 cancelled/overlap @10:00",
		}},
		{"allow begins each on time", Schedule{Overlap: OverlapAllow}, []string{
			"01T00:01:00 succeeded @01:00",
			"01T00:02:00 succeeded @02:00",
			"01T00:03:00 succeeded @03:00",
			"01T00:04:00 succeeded @04:00",
			"01T00:05:00 succeeded @05:00",
			"01T00:06:00 succeeded @06:00",
			"01T00:07:00 running @07:00",
			"01T00:08:00 running @08:00",
			"01T00:09:00 running @09:00",
			"01T00:10:00 running @10:00",
		}},
	} {
		t.Run(test.sentence, func(t *testing.T) {
			if got := during(t, test.schedule, 3*time.Minute+30*time.Second); !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestAFiringThatWaitsForARetryCountsAsNotDone(t *testing.T) {
	for overlap, want := range map[Overlap][]string{
		OverlapWait: {"01T00:01:00 succeeded", "01T00:02:00 succeeded +3 (01T00:03:00 to 01T00:05:00)", "01T00:06:00 succeeded"},
		OverlapSkip: {"01T00:01:00 succeeded", "01T00:02:00 cancelled/overlap", "01T00:03:00 cancelled/overlap",
			"01T00:04:00 cancelled/overlap", "01T00:05:00 cancelled/overlap", "01T00:06:00 succeeded"},
	} {
		t.Run(string(overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), quiet())
				handle(s, tick, Policy{}, func(_ context.Context, job *Job) error {
					if job.Attempt == 1 && job.ScheduledFor.Minute() == 1 {
						return RetryAfter(4*time.Minute+30*time.Second, errors.New("not yet"))
					}
					return nil
				})
				declareTick(t, s, Schedule{Name: "s", Spec: "* * * * *", Overlap: overlap})
				start(t, s)
				time.Sleep(6*time.Minute + time.Second)
				wantHistory(t, s, "s", want...)
			})
		})
	}
}
