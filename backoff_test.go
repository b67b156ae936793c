package rota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The schedules of three programs that had a retry policy before Rota, each of
// which must come out exactly.
var (
	taskboardRetry = Retry{Base: 10 * time.Second, Cap: time.Hour, Jitter: Plus(9 * time.Second), MaxAttempts: 8}
	towerRetry     = Retry{Base: time.Second, Cap: time.Hour, Jitter: Full(), MaxAttempts: 5}
	signupRetry    = Retry{Base: time.Second, Cap: time.Minute, Jitter: Fraction(0.2), MaxAttempts: 9, MaxElapsed: 10 * time.Minute}
)

type delayRange struct{ shortest, longest time.Duration }

var knownSchedules = []struct {
	name  string
	retry Retry
	want  []delayRange // after the first failure, the second, …
	step  time.Duration
}{
	{"taskboard: 5 s × 2^attempts and 0 to 9 whole seconds", taskboardRetry, []delayRange{
		{10 * time.Second, 19 * time.Second}, {20 * time.Second, 29 * time.Second}, {40 * time.Second, 49 * time.Second},
		{80 * time.Second, 89 * time.Second}, {160 * time.Second, 169 * time.Second}, {320 * time.Second, 329 * time.Second},
		{640 * time.Second, 649 * time.Second},
	}, time.Second},
	{"tower: uniform below 1, 2, 4 and 8 s", towerRetry, []delayRange{
		{0, time.Second - 1}, {0, 2*time.Second - 1}, {0, 4*time.Second - 1}, {0, 8*time.Second - 1},
	}, 1},
	{"signup: 1 s doubling to 60 s, and a fifth of it", signupRetry, []delayRange{
		{1000 * time.Millisecond, 1200 * time.Millisecond}, {2000 * time.Millisecond, 2400 * time.Millisecond},
		{4000 * time.Millisecond, 4800 * time.Millisecond}, {8000 * time.Millisecond, 9600 * time.Millisecond},
		{16 * time.Second, 19200 * time.Millisecond}, {32 * time.Second, 38400 * time.Millisecond},
		{60 * time.Second, 72 * time.Second}, {60 * time.Second, 72 * time.Second},
	}, 1},
}

func TestTheThreeKnownSchedulesHaveTheirExactRanges(t *testing.T) {
	for _, c := range knownSchedules {
		for i, want := range c.want {
			shortest, longest := c.retry.Range(i + 1)
			if shortest != want.shortest || longest != want.longest {
				t.Errorf("%s: failure %d: %v to %v, want %v to %v", c.name, i+1, shortest, longest, want.shortest, want.longest)
			}
		}
	}
	// Beyond their last attempt, which a job's own bound may allow.
	for _, c := range []struct {
		retry             Retry
		failure           int
		shortest, longest time.Duration
	}{
		{taskboardRetry, 9, 2560 * time.Second, 2569 * time.Second},
		{taskboardRetry, 10, time.Hour, time.Hour + 9*time.Second}, // 5120 s without the cap
		{taskboardRetry, 1000, time.Hour, time.Hour + 9*time.Second},
		{towerRetry, 13, 0, time.Hour - 1},
		{signupRetry, math.MaxInt32, time.Minute, 72 * time.Second},
	} {
		if shortest, longest := c.retry.Range(c.failure); shortest != c.shortest || longest != c.longest {
			t.Errorf("failure %d: %v to %v, want %v to %v", c.failure, shortest, longest, c.shortest, c.longest)
		}
	}
}

func TestDelaysOfTheKnownSchedulesFillTheirRangesEvenly(t *testing.T) {
	t.Parallel()
	const draws, buckets = 20_000, 10
	for _, c := range knownSchedules {
		for i, want := range c.want {
			var counts [buckets]int
			for range draws {
				d := c.retry.Delay(i + 1)
				if d < want.shortest || d > want.longest || (d-want.shortest)%c.step != 0 {
					t.Fatalf("%s: failure %d: a delay of %v; want %v to %v in steps of %v", c.name, i+1, d, want.shortest, want.longest, c.step)
				}
				counts[int64(d-want.shortest)*buckets/int64(want.longest-want.shortest+c.step)]++
			}
			for b, n := range counts {
				// A fair tenth is 2000 with a deviation of 42: seven of them
				// are exceeded less than once in 10^11 draws.
				if math.Abs(float64(n)-draws/buckets) > 7*42 {
					t.Errorf("%s: failure %d: tenth %d of the range was drawn %d times in %d", c.name, i+1, b, n, draws)
				}
			}
		}
	}
}

func TestTheKnownSchedulesComeOutOfTheTable(t *testing.T) {
	for _, c := range knownSchedules {
		t.Run(strings.Fields(c.name)[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openAt(t, filepath.Join(t.TempDir(), "rota.db"), Config{PollInterval: -1})
				const kind Kind[struct{}] = "always.fails"
				var began []time.Time
				Handle(s, kind, func(context.Context, *Job, struct{}) error {
					began = append(began, time.Now())
					return errors.New("no")
				}, Policy{Retry: c.retry})
				job := enqueue(t, s, kind, struct{}{}, EnqueueOptions{})
				runUntilIdle(t, s)

				if len(began) != c.retry.MaxAttempts {
					t.Fatalf("%d attempts, want %d", len(began), c.retry.MaxAttempts)
				}
				for i, a := range attemptsOf(t, s, job) {
					if a.Bound != c.retry.MaxAttempts {
						t.Errorf("attempt %d: bound %d, want %d", i+1, a.Bound, c.retry.MaxAttempts)
					}
					if i == c.retry.MaxAttempts-1 {
						if a.Decision != Dead || a.Reason != "exhausted" || a.Outcome != OutcomeFailed || !a.NextAt.IsZero() || a.DelayMin != 0 || a.DelayMax != 0 {
							t.Errorf("last attempt: %+v", a)
						}
						continue
					}
					want := c.want[i]
					if a.DelayMin != want.shortest || a.DelayMax != want.longest.Truncate(time.Microsecond) {
						t.Errorf("attempt %d: range %v to %v, want %v to %v", i+1, a.DelayMin, a.DelayMax, want.shortest, want.longest)
					}
					waited := began[i+1].Sub(began[i])
					if waited < want.shortest || waited > want.longest+time.Millisecond {
						t.Errorf("attempt %d began %v after the one before; want %v to %v", i+2, waited, want.shortest, want.longest)
					}
					if early := a.NextAt.Sub(began[i+1]); early > 0 {
						t.Errorf("attempt %d began %v before its time", i+2, early)
					}
				}
			})
		})
	}
}

// randomRetry draws policies that validate, extreme ones as often as plain ones.
func randomRetry(r *rand.Rand) Retry {
	duration := func() time.Duration {
		switch r.IntN(6) {
		case 0:
			return 0
		case 1:
			return 1
		case 2:
			return math.MaxInt64 - time.Duration(r.Int64N(3))
		default:
			return time.Duration(r.Int64()) >> r.IntN(63)
		}
	}
	p := Retry{Base: duration(), Cap: duration(), MaxElapsed: duration(), MaxAttempts: int(duration())}
	switch r.IntN(4) {
	case 0:
		p.Factor = 1
	case 1:
		p.Factor = 1 + 999*r.Float64()
	case 2:
		p.Factor = 1 + r.Float64()/1e6
	}
	switch r.IntN(6) {
	case 0:
		p.Jitter = NoJitter()
	case 1:
		p.Jitter = Full()
	case 2:
		p.Jitter = Plus(duration() / time.Second * time.Second)
	case 3:
		p.Jitter = Fraction(r.Float64())
	case 4:
		p.Jitter = Fraction(float64(r.IntN(2)))
	}
	return p
}

func TestNoPolicyAndNoAttemptNumberGivesADelayOutOfBounds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50_000 {
		p := randomRetry(r)
		if err := p.validate(); err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		if err := checkDelays(p, r); err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
	}
}

func checkDelays(p Retry, r *rand.Rand) error {
	full := p.withDefaults()
	share := time.Duration(math.MaxInt64) // the most that jitter may add to the cap
	switch full.Jitter.kind {
	case jitterNone, jitterFull:
		share = 0
	case jitterPlus:
		share = full.Jitter.plus
	case jitterFraction:
		if most := float64(full.Cap) * full.Jitter.fraction; most < math.MaxInt64 {
			share = time.Duration(most)
		}
	}
	limit := uint64(full.Cap) + uint64(share)
	var lastShortest, lastLongest time.Duration
	for _, failure := range []int{math.MinInt, -1, 0, 1, 2, 3, 4, 10, 62, 63, 64, 65, 1000, 1 + r.IntN(math.MaxInt), math.MaxInt} {
		shortest, longest := p.Range(failure)
		switch {
		case shortest < 0 || longest < shortest:
			return fmt.Errorf("failure %d: range %d to %d", failure, shortest, longest)
		case uint64(longest) > limit || shortest > full.Cap:
			return fmt.Errorf("failure %d: range %d to %d, beyond the cap and its jitter, %d", failure, shortest, longest, limit)
		case failure > 0 && failure < 100 && (shortest < lastShortest || longest < lastLongest):
			return fmt.Errorf("failure %d: range %d to %d, below the one before", failure, shortest, longest)
		}
		lastShortest, lastLongest = shortest, longest
		for range 5 {
			if d := p.Delay(failure); d < shortest || d > longest {
				return fmt.Errorf("failure %d: a delay of %d outside of %d to %d", failure, d, shortest, longest)
			}
		}
	}
	return nil
}

func TestDoublingDelaysAreExactPowersOfTwo(t *testing.T) {
	// Integer arithmetic as the independent answer, as long as it can't overflow.
	for _, base := range []time.Duration{1, time.Millisecond, 1500 * time.Millisecond, 7 * time.Second} {
		p := Retry{Base: base, Cap: math.MaxInt64, Jitter: NoJitter()}
		for failure := 1; base<<(failure-1) < 1<<53; failure++ {
			if shortest, longest := p.Range(failure); shortest != base<<(failure-1) || longest != shortest {
				t.Errorf("base %v, failure %d: %v to %v, want %v", base, failure, shortest, longest, base<<(failure-1))
			}
		}
	}
}

func TestTheZeroRetryIsTheDocumentedDefault(t *testing.T) {
	shortest, longest := Retry{}.Range(1)
	if shortest != 10*time.Second || longest != 12*time.Second {
		t.Errorf("after the first failure: %v to %v", shortest, longest)
	}
	if shortest, longest = (Retry{}).Range(100); shortest != time.Hour || longest != 72*time.Minute {
		t.Errorf("in the end: %v to %v", shortest, longest)
	}
	if n := (Retry{}).withDefaults().MaxAttempts; n != 10 {
		t.Errorf("%d attempts", n)
	}
}

func TestARetryIsTheSameAfterStorage(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 5_000 {
		p := randomRetry(r)
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("%+v: %v", p, err)
		}
		var back Retry
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if back != p {
			t.Fatalf("%+v became %s and then %+v", p, data, back)
		}
	}
}

func TestJitterTextsAreReadOrRefusedByName(t *testing.T) {
	for text, want := range map[string]Jitter{
		"": {}, "none": NoJitter(), "full": Full(), "plus 9s": Plus(9 * time.Second), "plus 1m30s": Plus(90 * time.Second),
		"fraction 0.2": Fraction(0.2), "fraction 1": Fraction(1),
	} {
		var j Jitter
		if err := j.UnmarshalText([]byte(text)); err != nil || j != want {
			t.Errorf("%q: %+v, %v", text, j, err)
		}
		var again Jitter
		if err := again.UnmarshalText([]byte(j.String())); err != nil || again != want {
			t.Errorf("%q, written as %q and read again: %+v, %v", text, j, again, err)
		}
	}
	for _, text := range []string{"plus", "plus 9", "plus x", "fraction", "fraction x", "full 3s", "none 1", "Full", "random", " full", "plus 9s 9s"} {
		var j Jitter
		err := j.UnmarshalText([]byte(text))
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestRetriesThatMakeNoSenseAreRefused(t *testing.T) {
	s := open(t, Config{})
	const kind Kind[struct{}] = "refused"
	for name, p := range map[string]Retry{
		"base":         {Base: -1},
		"factor":       {Factor: 0.5},
		"cap":          {Cap: -time.Second},
		"max_attempts": {MaxAttempts: -1},
		"max_elapsed":  {MaxElapsed: -1},
		"jitter":       {Jitter: Plus(1500 * time.Millisecond)},
	} {
		if err := p.validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := kind.Enqueue(t.Context(), s, struct{}{}, EnqueueOptions{Retry: &p}); !errors.Is(err, ErrInvalid) || !errors.Is(err, ErrConfig) {
			t.Errorf("enqueue with a wrong %s: %v", name, err)
		}
	}
	for _, p := range []Retry{
		{Factor: math.NaN()}, {Factor: math.Inf(1)}, {Factor: -2}, {Factor: 1001}, {Jitter: Plus(-time.Second)},
		{Jitter: Fraction(-0.1)}, {Jitter: Fraction(1.1)}, {Jitter: Fraction(math.NaN())},
	} {
		if err := p.validate(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if jobs := slices.Collect(jobIDs(t, s, Filter{})); len(jobs) != 0 {
		t.Errorf("refused enqueues left %d jobs", len(jobs))
	}
}
