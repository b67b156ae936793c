package rota

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Retry says how often and how late a job that failed is tried again. The zero
// value is the default policy. The delay after failure n (the first is 1) is
//
//	d = min(Base × Factor^(n-1), Cap)
//
// and Jitter spreads it, so that jobs that failed together do not come back
// together (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture
// Blog, 2015). The delay is a row's run_at and never a sleeping goroutine.
type Retry struct {
	// Base is the delay after the first failure. Zero means 10 s.
	Base time.Duration

	// Factor multiplies the delay from one failure to the next; 1 keeps it
	// constant. Zero means 2.
	Factor float64

	// Cap bounds the delay before jitter. Zero means 1 h.
	Cap time.Duration

	// Jitter spreads the delay. The zero value is Fraction(0.2).
	Jitter Jitter

	// MaxAttempts bounds the attempts that count: those that ended by the
	// job's own doing. Interrupted, snoozed and cancelled ones do not, and
	// deaths of the process have a bound of their own (Policy.MaxDeaths).
	// 1 means no retry. Zero means 10.
	MaxAttempts int

	// MaxElapsed bounds the time from the start of the first attempt to the
	// start of the last. Zero means no such bound.
	MaxElapsed time.Duration
}

// Jitter is the random part of a delay: one of Plus, Full, Fraction, NoJitter.
// Its text form, in TOML and in the database, is "plus 9s", "full",
// "fraction 0.2" or "none".
type Jitter struct {
	kind     jitterKind
	plus     time.Duration
	fraction float64
}

type jitterKind uint8

const (
	jitterDefault jitterKind = iota
	jitterNone
	jitterPlus
	jitterFull
	jitterFraction
)

// Plus adds a whole number of seconds, 0 to d, each equally likely. d is a
// whole number of seconds.
func Plus(d time.Duration) Jitter { return Jitter{kind: jitterPlus, plus: d} }

// Full draws the delay uniformly from [0, d): the widest spread, and sometimes
// hardly any delay.
func Full() Jitter { return Jitter{kind: jitterFull} }

// Fraction adds up to the fraction f of the delay: with 0.2, a delay of 10 s
// becomes 10 s to 12 s. f lies in 0..1.
func Fraction(f float64) Jitter { return Jitter{kind: jitterFraction, fraction: f} }

// NoJitter leaves the delay as it is.
func NoJitter() Jitter { return Jitter{kind: jitterNone} }

// Range gives the shortest and the longest delay after the failure of that
// number, the first being 1. It is pure, and right for every number: no
// overflow, never negative, never beyond Cap and the jitter's share of it.
func (r Retry) Range(failure int) (shortest, longest time.Duration) {
	r = r.withDefaults()
	d := r.Cap
	exact := float64(r.Base) * math.Pow(r.Factor, float64(max(failure, 1)-1))
	if exact < float64(r.Cap) { // false for +Inf
		d = time.Duration(exact)
	}
	switch r.Jitter.kind {
	case jitterPlus:
		return d, add(d, r.Jitter.plus)
	case jitterFull:
		return 0, max(d-1, 0)
	case jitterFraction:
		return d, add(d, saturate(float64(d)*r.Jitter.fraction))
	default:
		return d, d
	}
}

// Delay draws the delay after the failure of that number from its Range.
func (r Retry) Delay(failure int) time.Duration {
	shortest, longest := r.Range(failure)
	step := time.Duration(1)
	if r.withDefaults().Jitter.kind == jitterPlus {
		step = time.Second
	}
	return shortest + rand.N((longest-shortest)/step+1)*step
}

// add is the sum of two delays, or the longest Duration if that is shorter.
func add(d, extra time.Duration) time.Duration {
	return d + min(extra, math.MaxInt64-d)
}

// saturate keeps what float64 arithmetic gives within a Duration.
func saturate(ns float64) time.Duration {
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

func (r Retry) withDefaults() Retry {
	if r.Base == 0 {
		r.Base = 10 * time.Second
	}
	if r.Factor == 0 {
		r.Factor = 2
	}
	if r.Cap == 0 {
		r.Cap = time.Hour
	}
	if r.Jitter.kind == jitterDefault {
		r.Jitter = Fraction(0.2)
	}
	if r.MaxAttempts == 0 {
		r.MaxAttempts = 10
	}
	return r
}

// validate reports every value that is not allowed. It matches ErrConfig.
func (r Retry) validate() error { return r.check().err() }

func (r Retry) check() faults {
	var f faults
	if r.Base < 0 {
		f.bad("base", r.Base, "zero (10s) or more")
	}
	if r.Factor != 0 && !(r.Factor >= 1 && r.Factor <= 1000) {
		f.bad("factor", r.Factor, "zero (2) or 1 to 1000")
	}
	if r.Cap < 0 {
		f.bad("cap", r.Cap, "zero (1h) or more")
	}
	if r.MaxAttempts < 0 {
		f.bad("max_attempts", r.MaxAttempts, "zero (10) or more; 1 means no retry")
	}
	if r.MaxElapsed < 0 {
		f.bad("max_elapsed", r.MaxElapsed, "zero (no bound) or more")
	}
	if j := r.Jitter; j.kind == jitterPlus && (j.plus < 0 || j.plus%time.Second != 0) {
		f.bad("jitter", quoted(j.String()), "plus a whole number of seconds")
	} else if j.kind == jitterFraction && !(j.fraction >= 0 && j.fraction <= 1) {
		f.bad("jitter", quoted(j.String()), "a fraction of 0 to 1")
	}
	return f
}

func (j Jitter) String() string {
	switch j.kind {
	case jitterNone:
		return "none"
	case jitterPlus:
		return "plus " + j.plus.String()
	case jitterFull:
		return "full"
	case jitterFraction:
		return "fraction " + strconv.FormatFloat(j.fraction, 'g', -1, 64)
	default:
		return ""
	}
}

// MarshalText gives the text form; the zero Jitter is the empty text.
func (j Jitter) MarshalText() ([]byte, error) { return []byte(j.String()), nil }

const allowedJitter = `"plus 9s", "full", "fraction 0.2", "none"`

// UnmarshalText takes the text form. Its errors match ErrConfig.
func (j *Jitter) UnmarshalText(text []byte) error {
	word, value, _ := strings.Cut(string(text), " ")
	var err error
	switch word {
	case "":
		*j = Jitter{}
	case "none":
		*j = NoJitter()
	case "full":
		*j = Full()
	case "plus":
		*j = Jitter{kind: jitterPlus}
		j.plus, err = time.ParseDuration(value)
	case "fraction":
		*j = Jitter{kind: jitterFraction}
		j.fraction, err = strconv.ParseFloat(value, 64)
	default:
		err = fmt.Errorf("unknown word %q", word)
	}
	if err == nil && (word == "" || word == "none" || word == "full") && value != "" {
		err = fmt.Errorf("%q takes no value", word)
	}
	if err != nil {
		return &ConfigError{Key: "jitter", Problem: fmt.Sprintf("is %.60q: %.100v", text, err), Hint: "allowed: " + allowedJitter}
	}
	return nil
}

// retryJSON is how a Retry stands in the database: durations as people write
// them, so that a row can be read without a calculator.
type retryJSON struct {
	Base        string  `json:"base,omitempty"`
	Factor      float64 `json:"factor,omitempty"`
	Cap         string  `json:"cap,omitempty"`
	Jitter      Jitter  `json:"jitter,omitzero"`
	MaxAttempts int     `json:"max_attempts,omitempty"`
	MaxElapsed  string  `json:"max_elapsed,omitempty"`
}

// MarshalJSON writes durations as text, such as "1m30s".
func (r Retry) MarshalJSON() ([]byte, error) {
	text := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return json.Marshal(retryJSON{text(r.Base), r.Factor, text(r.Cap), r.Jitter, r.MaxAttempts, text(r.MaxElapsed)})
}

// UnmarshalJSON takes what MarshalJSON writes. Its errors match ErrConfig.
func (r *Retry) UnmarshalJSON(data []byte) error {
	var in retryJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("%w: retry: %w", ErrConfig, err)
	}
	out := Retry{Factor: in.Factor, Jitter: in.Jitter, MaxAttempts: in.MaxAttempts}
	for _, f := range []struct {
		text string
		to   *time.Duration
	}{{in.Base, &out.Base}, {in.Cap, &out.Cap}, {in.MaxElapsed, &out.MaxElapsed}} {
		if f.text == "" {
			continue
		}
		d, err := time.ParseDuration(f.text)
		if err != nil {
			return fmt.Errorf("%w: retry: %w", ErrConfig, err)
		}
		*f.to = d
	}
	if err := out.validate(); err != nil {
		return err
	}
	*r = out
	return nil
}
