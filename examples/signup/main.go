// Command signup sends verification mails through a provider that misbehaves on
// purpose, and keeps evidence of each: which event, which account, which
// recipient (as a hash), which template, which attempts with which outcomes.
// Neither a token nor an address is in the evidence, in a log, or in a number.
//
//	go run ./examples/signup             # 20 times as fast: about 10 seconds
//	go run ./examples/signup -speed 1    # the real schedule: about 3 minutes
//
// It begins with a crash: a first process dies after the provider has accepted
// a mail and before that is recorded. A second process finds out what happened.
// The program fails if anything is not as it should be.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

func main() {
	if os.Getenv(firstLifeMark) != "" {
		firstLife()
	}
	speed := flag.Float64("speed", 20, "how many times as fast as the real schedule, which is 1")
	flag.Parse()
	if !(*speed >= 1 && *speed <= 100) {
		fmt.Fprintln(os.Stderr, "signup: -speed is a number from 1 to 100")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, options{speed: *speed, people: people, redact: redact})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "signup:", err)
		os.Exit(1)
	}
}

// schedule is when a mail that failed is tried again: after 1, 2, 4, … 60 s and
// up to a fifth of that, at most 8 times and for at most 15 minutes.
func schedule(speed float64) rota.Retry {
	faster := func(d time.Duration) time.Duration { return time.Duration(float64(d) / speed) }
	return rota.Retry{
		Base:        faster(time.Second),
		Factor:      2,
		Cap:         faster(time.Minute),
		Jitter:      rota.Fraction(0.2),
		MaxAttempts: 8,
		MaxElapsed:  faster(15 * time.Minute),
	}
}

// options is what the tests vary.
type options struct {
	speed  float64
	people []person
	redact func(string) string
}

// run lets the application live twice, and checks what it leaves behind. The
// first of the people is the one whose mail the crash meets.
func run(ctx context.Context, out io.Writer, o options) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute+time.Duration(float64(5*time.Minute)/o.speed),
		errors.New("not everything was settled in time"))
	defer cancel()
	dir, err := os.MkdirTemp("", "signup-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	record := &transcript{out: out}
	setup := setup{
		Database: filepath.Join(dir, "signup.db"),
		Secret:   []byte(rand.Text()),
		Shared:   []byte(rand.Text()),
		Speed:    o.speed,
	}
	provider, err := startProvider(o.people, setup.Shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.close()) }()
	setup.Provider = provider.url

	fmt.Fprintf(record, "Signup sends verification mails, %g times as fast as its schedule: 1 s doubling to 60 s,\n"+
		"plus up to 20 %%; at most 8 attempts and 15 minutes. Each account shows one way in which that can go:\n", o.speed)
	for _, who := range o.people {
		fmt.Fprintf(record, "  %s  %s\n", who.account, who.story)
	}
	fmt.Fprintln(record, "\nThe first process:")
	if err := liveOnce(ctx, record, firstSetup{setup, o.people[0].account, o.people[0].email}); err != nil {
		return err
	}
	fmt.Fprintln(record, "\nThe second process:")
	a, err := openApp(setup, record, o.redact)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	left, err := a.leftBehind(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(record, "  found: %s\n", left)
	if err := a.settleAll(ctx, provider, o.people); err != nil {
		return err
	}
	fmt.Fprintln(record)
	r := report{app: a, provider: provider, people: o.people, left: left, record: record}
	return r.print(ctx)
}

// settleAll is the second life: it signs the others up and works until nothing
// is open any more.
func (a *app) settleAll(ctx context.Context, p *provider, all []person) error {
	hook, stopListening, err := a.serveReceipts()
	if err != nil {
		return err
	}
	defer stopListening()
	p.subscribe(hook)

	running, stop := context.WithCancelCause(ctx)
	ran := make(chan error, 1)
	go func() {
		err := a.jobs.Run(running)
		stop(err)
		ran <- err
	}()
	err = func() error {
		for _, who := range all[1:] {
			if err := a.signUp(running, who.account, who.email); err != nil {
				return err
			}
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if open, err := a.settle(running); err != nil || open == 0 {
				return err
			}
			select {
			case <-running.Done():
				return context.Cause(running)
			case <-tick.C:
			}
		}
	}()
	stop(nil)
	return errors.Join(err, <-ran)
}

// The first life is this same program, as a child process. It gets its setup on
// standard input, as secrets and addresses have no place among arguments.

const (
	firstLifeMark = "SIGNUP_FIRST_LIFE"
	crashed       = 3 // the exit status of a process that died where it should
)

type firstSetup struct {
	Setup          setup
	Account, Email string
}

// liveOnce runs the first life, and expects it to die.
func liveOnce(ctx context.Context, out io.Writer, first firstSetup) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	in, err := json.Marshal(first)
	if err != nil {
		return err
	}
	child := exec.CommandContext(ctx, self)
	child.Env = append(os.Environ(), firstLifeMark+"=1")
	child.Stdin, child.Stdout, child.Stderr = strings.NewReader(string(in)), out, out
	err = child.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != crashed {
		return fmt.Errorf("the first process ended with %v, not with status %d", err, crashed)
	}
	fmt.Fprintf(out, "  died with status %d\n", crashed)
	return nil
}

// firstLife signs one account up, and dies when the provider has accepted the
// mail and nobody has written that down. It does not return.
func firstLife() {
	err := func() error {
		var first firstSetup
		if err := json.NewDecoder(os.Stdin).Decode(&first); err != nil {
			return err
		}
		a, err := openApp(first.Setup, os.Stdout, redact)
		if err != nil {
			return err
		}
		a.afterAcceptance = func() { os.Exit(crashed) }
		ctx := context.Background()
		if err := a.signUp(ctx, first.Account, first.Email); err != nil {
			return err
		}
		_, err = a.jobs.RunDue(ctx)
		return errors.Join(err, errors.New("the mail was not accepted"))
	}()
	fmt.Println("  first process:", err)
	os.Exit(1)
}

// transcript passes on what is printed and keeps it, so that it can be searched
// for what must not be in it.
type transcript struct {
	mu   sync.Mutex // guards all below
	out  io.Writer
	text strings.Builder
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.Write(p)
	return t.out.Write(p)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
