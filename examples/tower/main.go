// Command tower is a company's nightly maintenance, for real: one SQLite file
// that holds the application's tables and Rota's, two nightly schedules, two
// instances of the program of which one works, a bank that fails in every way
// that banks do, and a death in the middle of it.
//
//	go run ./examples/tower
//
// It takes about ten seconds, in a folder of its own, and ends with a report
// that is checked against the tables and the bank's own book. The exit status is
// 0 if every claim of the report holds.
//
// The story stands in this file, the program that it is about in app.go, its
// processes in instance.go, the bank in bank.go, the report in report.go and
// what it claims in claims.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

func main() {
	if settings := os.Getenv(instanceEnv); settings != "" {
		os.Exit(runInstance(settings))
	}
	status, _ := run(os.Args[1:], os.Stdout)
	os.Exit(status)
}

// run tells the story and prints the report. It returns the exit status, and
// the facts for who wants to ask more of them.
func run(args []string, out io.Writer) (status int, f *facts) {
	flags := flag.NewFlagSet("tower", flag.ContinueOnError)
	flags.SetOutput(out)
	keep := flags.Bool("keep", false, "keep the folder with the database and the logs")
	limit := flags.Duration("limit", 2*time.Minute, "give up after this long")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()

	folder, err := os.MkdirTemp("", "tower-")
	if err != nil {
		fmt.Fprintf(out, "FAILED: %v\n", err)
		return 1, nil
	}
	f, err = tell(ctx, folder, out)
	verdict, ok := fmt.Sprintf("FAILED: %v", err), false
	if err == nil {
		f.print(out)
		verdict, ok = f.verdict()
	}
	if *keep || !ok {
		fmt.Fprintf(out, "The database and the logs are in %s\n", folder)
	} else if err := os.RemoveAll(folder); err != nil {
		verdict, ok = fmt.Sprintf("FAILED: clean up: %v", err), false
	}
	fmt.Fprintln(out, verdict)
	if !ok {
		return 1, f
	}
	return 0, f
}

// story is what is going on, and what was seen of it.
type story struct {
	out    io.Writer
	folder string
	began  time.Time

	night     nightTime
	bank      *bank
	operator  *app // this process: it looks, and does what a person would do
	log       *os.File
	instances []*instance

	seen seen
}

// seen is what only an eyewitness knows; the tables tell the rest.
type seen struct {
	nights   []time.Time // that passed while no process was up
	declared []*rota.Job // the schedules as the program's first start left them
	first    rota.Lease  // that start's
	runner   rota.Lease  // of the instance that won, and was killed
	standby  rota.Lease  // of the one that took over
	killedAt time.Time
	held     []int64 // invoices that the bank had charged when the runner died, unanswered

	dead     *rota.Job // the job that is replayed, before that
	evidence []rota.Attempt
	replay   rota.Enqueued

	last rota.Lease  // after the clean stop
	next []*rota.Job // the schedules as the next release left them
}

// tell lets it all happen, step by step. It returns when every process and
// connection that it has opened is closed again.
func tell(ctx context.Context, folder string, out io.Writer) (f *facts, err error) {
	st := &story{out: out, folder: folder, began: time.Now()}
	defer func() { err = errors.Join(err, st.close()) }()
	for _, step := range []func(context.Context) error{
		st.firstStart,
		st.nightsPass,
		st.twoInstances,
		st.killTheRunner,
		st.finishTheNight,
		st.replayADeadOne,
		st.cleanStop,
		st.nextRelease,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return gather(ctx, st.operator.s, st.bank, st.seen)
}

func (st *story) say(format string, args ...any) {
	fmt.Fprintf(st.out, "%5.1fs  %s\n", time.Since(st.began).Seconds(), fmt.Sprintf(format, args...))
}

func (st *story) file() string { return filepath.Join(st.folder, "company.db") }

// firstStart: the program is installed. It writes down its schedules and, since
// nothing is due, is done. In production it would say "0 3 * * *" and wait for
// the night; here three nights begin a second apart, the first two to three seconds ahead.
func (st *story) firstStart(ctx context.Context) (err error) {
	// The bank withholds its answers once it has charged 40 payments: that is
	// when the runner will die.
	if st.bank, err = openBank(40); err != nil {
		return err
	}
	if st.log, err = os.Create(filepath.Join(st.folder, "operator.log")); err != nil {
		return err
	}
	if st.operator, err = openApp(ctx, st.file(), "operator", st.bank.url, st.log); err != nil {
		return err
	}
	st.night, st.seen.nights = threeNights(time.Now())
	if st.seen.declared, err = st.release(ctx, "first-start", st.night); err != nil {
		return err
	}
	if st.seen.first, err = st.lease(ctx); err != nil {
		return err
	}
	st.say("The program was installed and wrote down %d nightly schedules. Then it was shut down.", len(st.seen.declared))
	return nil
}

// release is a start of the program that only declares its schedules, and how
// they stand then.
func (st *story) release(ctx context.Context, name string, night nightTime) (schedules []*rota.Job, err error) {
	a, err := openApp(ctx, st.file(), name, st.bank.url, st.log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.s.Close()) }()
	if err := a.declare(night); err != nil {
		return nil, err
	}
	if _, err := a.s.RunDue(ctx); err != nil {
		return nil, err
	}
	return a.s.Schedules(ctx)
}

// threeNights is a schedule for three nights that begin a second apart, and the
// instants at which they do.
func threeNights(now time.Time) (nightTime, []time.Time) {
	first := now.UTC().Truncate(time.Second).Add(3 * time.Second)
	var nights []time.Time
	var seconds, minutes, hours []int
	for i := range 3 {
		at := first.Add(time.Duration(i) * time.Second)
		nights = append(nights, at)
		seconds, minutes, hours = append(seconds, at.Second()), append(minutes, at.Minute()), append(hours, at.Hour())
	}
	list := func(values []int) string {
		slices.Sort(values)
		var words []string
		for _, v := range slices.Compact(values) {
			words = append(words, strconv.Itoa(v))
		}
		return strings.Join(words, ",")
	}
	spec := fmt.Sprintf("%s %s %s * * *", list(seconds), list(minutes), list(hours))
	return nightTime{Spec: spec, Zone: "UTC", Seconds: true}, nights
}

// nightsPass: business goes on, but the maintenance program is not up.
func (st *story) nightsPass(ctx context.Context) error {
	if err := st.operator.seed(ctx, withoutAccount); err != nil {
		return fmt.Errorf("fill the application's tables: %w", err)
	}
	last := st.seen.nights[len(st.seen.nights)-1]
	dawn := time.NewTimer(time.Until(last.Add(10 * time.Millisecond)))
	defer dawn.Stop()
	select {
	case <-dawn.C:
	case <-ctx.Done():
		return fmt.Errorf("wait for three nights: %w", context.Cause(ctx))
	}
	st.say("Three nights have passed without it. %d invoices are due and not sent; %d of %d sessions have expired.",
		toBeSent, expiredSessions, expiredSessions+liveSessions)
	return nil
}

// twoInstances: the program is started twice on one file. Both compete; one
// becomes the runner and makes up for the missed nights, the other waits.
func (st *story) twoInstances(ctx context.Context) (err error) {
	for _, name := range []string{"tower-a", "tower-b"} {
		i, err := st.start(name)
		if err != nil {
			return err
		}
		st.instances = append(st.instances, i)
	}
	for _, i := range st.instances {
		if err := i.waitReady(ctx); err != nil {
			return err
		}
	}
	for _, i := range st.instances {
		if err := i.begin(); err != nil {
			return err
		}
	}
	if st.seen.runner, err = st.nextLease(ctx, st.seen.first); err != nil {
		return err
	}
	st.say("Two instances were started. %s has the lease (token %d) and works; the other waits.",
		st.seen.runner.Holder, st.seen.runner.Token)
	return nil
}

// killTheRunner: at the worst moment. The bank has charged and not yet
// answered; nobody knows that but the bank.
func (st *story) killTheRunner(ctx context.Context) (err error) {
	err = await(ctx, "both late runs are done", func() (bool, error) {
		for _, late := range st.seen.declared {
			job, err := st.operator.s.Job(ctx, late.ID)
			if err != nil || !job.State.Terminal() {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	if st.seen.held, err = st.bank.waitHeld(ctx, 4); err != nil {
		return err
	}
	runner := st.instanceOf(st.seen.runner)
	st.seen.killedAt = time.Now()
	if err := runner.kill(); err != nil {
		return err
	}
	st.bank.release()
	st.say("kill -9 of %s, while %d payments were charged and not yet answered.", runner.name, len(st.seen.held))
	if st.seen.standby, err = st.nextLease(ctx, st.seen.runner); err != nil {
		return err
	}
	st.say("%s took over (token %d), %v after the kill.",
		st.seen.standby.Holder, st.seen.standby.Token, st.seen.takeover().Round(time.Millisecond))
	return nil
}

func (s seen) takeover() time.Duration { return s.standby.AcquiredAt.Sub(s.killedAt) }

// finishTheNight: retries run their course until nothing is left to do.
func (st *story) finishTheNight(ctx context.Context) error {
	err := await(ctx, "all work is done", func() (bool, error) {
		stats, err := st.operator.s.Stats(ctx) // one instant: nothing slips from one state to another
		nextFirings := len(st.seen.declared)
		return stats.States[rota.Running] == 0 && stats.States[rota.Pending] == nextFirings, err
	})
	if err == nil {
		st.say("Nothing is left to do. What could not be mended waits for a person.")
	}
	return err
}

// replayADeadOne: a person mends an invoice and has its charge done again. The
// operator's process asks; whoever is the runner does it.
func (st *story) replayADeadOne(ctx context.Context) (err error) {
	s := st.operator.s
	for job, err := range s.Jobs(ctx, rota.Filter{State: rota.Dead, Kind: string(chargeInvoice)}) {
		if err != nil {
			return err
		}
		if job.Reason == "permanent" {
			st.seen.dead = job
			break
		}
	}
	if st.seen.dead == nil {
		return errors.New("no charge is dead for a permanent reason; the bank refuses payments without an account")
	}
	if st.seen.evidence, err = s.Attempts(ctx, st.seen.dead.ID); err != nil {
		return err
	}
	invoice, err := invoiceOf(st.seen.dead)
	if err != nil {
		return err
	}
	if err := st.operator.setAccount(ctx, invoice, fmt.Sprintf("ACC-%04d", invoice)); err != nil {
		return err
	}
	st.seen.replay, err = s.Replay(ctx, st.seen.dead.ID, rota.ReplayOptions{
		By: rota.By{Actor: "anna", Reason: "the customer's account was missing; it is there now"},
	})
	if err != nil {
		return err
	}
	var again *rota.Job
	err = await(ctx, "the replay is done", func() (done bool, err error) {
		again, err = s.Job(ctx, st.seen.replay.ID)
		return err == nil && again.State.Terminal(), err
	})
	if err != nil {
		return err
	}
	st.say("Anna gave invoice %d an account and replayed its dead job: %s.", invoice, again.State)
	return nil
}

// cleanStop: the instance that is left is told to end.
func (st *story) cleanStop(ctx context.Context) (err error) {
	standby := st.instanceOf(st.seen.standby)
	if err := standby.stop(ctx); err != nil {
		return err
	}
	if st.seen.last, err = st.lease(ctx); err != nil {
		return err
	}
	st.say("%s was told to stop; it ended cleanly.", standby.name)
	return nil
}

// nextRelease: the schedules as production has them. A start that declares
// something else moves them.
func (st *story) nextRelease(ctx context.Context) (err error) {
	st.seen.next, err = st.release(ctx, "next-release", nightTime{Spec: "0 3 * * *", Zone: "Europe/Berlin"})
	if err != nil {
		return err
	}
	st.say("The next release declares the schedules at 3 in the morning, Berlin time.")
	return nil
}

// close ends what is still open, whatever happened before.
func (st *story) close() error {
	var errs []error
	for _, i := range st.instances {
		errs = append(errs, i.kill())
	}
	if st.operator != nil {
		errs = append(errs, st.operator.s.Close())
	}
	if st.bank != nil {
		errs = append(errs, st.bank.close())
	}
	if st.log != nil {
		errs = append(errs, st.log.Close())
	}
	return errors.Join(errs...)
}

// await looks until ok says yes or fails; ctx bounds its patience.
func await(ctx context.Context, what string, ok func() (bool, error)) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := ok(); yes || err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain until %s: %w", what, context.Cause(ctx))
		}
	}
}

func (st *story) lease(ctx context.Context) (rota.Lease, error) {
	stats, err := st.operator.s.Stats(ctx)
	return stats.Lease, err
}

// nextLease waits for a holder that comes after this one.
func (st *story) nextLease(ctx context.Context, after rota.Lease) (next rota.Lease, err error) {
	err = await(ctx, fmt.Sprintf("someone follows the lease's token %d", after.Token), func() (bool, error) {
		var err error
		next, err = st.lease(ctx)
		return next.Token > after.Token && next.Holder != "", err
	})
	return next, err
}

func (st *story) instanceOf(l rota.Lease) *instance {
	for _, i := range st.instances {
		if strings.HasPrefix(l.Holder, i.name+":") {
			return i
		}
	}
	return &instance{name: "nobody"}
}
