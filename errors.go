package rota

import (
	"context"
	"errors"
)

// What can go wrong, grouped by when. Every error of this package wraps one of
// these, an error of the context package, or the cause itself (the disk's, the
// database's), and says which call and which job, kind or file it is about.
var (
	// ErrNotDatabase: the file is not a SQLite database. Open changes nothing.
	// Check the path; restore the file from a backup if it was damaged.
	ErrNotDatabase = errors.New("not a SQLite database")

	// ErrNewerSchema: a newer version of Rota has written the file. Open
	// changes nothing. Upgrade this program.
	ErrNewerSchema = errors.New("the schema is newer than this program")

	// ErrConfig: a Config, Policy, Retry, Schedule or TOML file holds a value
	// that is not allowed. The message names it.
	ErrConfig = errors.New("invalid configuration")

	// ErrInvalid: an argument of a call is not allowed: too large, no JSON, no
	// name. Nothing was written.
	ErrInvalid = errors.New("invalid argument")

	// ErrUncertain: the context ended while the write was being committed. The
	// write is wholly there or wholly absent, and which of them is not known;
	// a UniqueKey makes it safe to ask again.
	ErrUncertain = errors.New("outcome of the write is not known")

	// ErrBusy: another process held the database's write lock for longer than
	// a Store waits. Nothing was written. Callers of a Scheduler do not see it:
	// the writer tries again until their context ends.
	ErrBusy = errors.New("database is busy")

	// ErrClosed: the Scheduler has been closed.
	ErrClosed = errors.New("scheduler is closed")

	// ErrRunning: Run or RunDue is already at work in this Scheduler.
	ErrRunning = errors.New("scheduler is running already")

	// ErrNotFound: there is no such job or schedule.
	ErrNotFound = errors.New("not found")

	// ErrState: the job's or schedule's state does not allow this. The message
	// says which state it is in.
	ErrState = errors.New("not allowed in this state")

	// ErrLeaseHeld: another runner works this database (RunDue only; Run waits).
	ErrLeaseHeld = errors.New("another runner holds the lease")

	// ErrHandlersLeft: handlers ignored their context for longer than the
	// grace. Their jobs are recorded as unknown, their goroutines still run.
	ErrHandlersLeft = errors.New("handlers still run")
)

// Why a handler's context ended: what context.Cause returns for it.
var (
	// ErrLeaseLost: this process is no longer the runner, or could not renew
	// its lease in time. It also is the answer of CompleteTx to a handler that
	// comes too late.
	ErrLeaseLost = errors.New("lease lost")

	// ErrShutdown: Run's context is done and the grace has passed.
	ErrShutdown = errors.New("runner is shutting down")

	// ErrCancelled: a person cancelled the job.
	ErrCancelled = errors.New("job cancelled")

	// ErrTimeout: the attempt has taken longer than its Policy's Timeout. It
	// matches context.DeadlineExceeded.
	ErrTimeout error = timeoutError{}
)

type timeoutError struct{}

func (timeoutError) Error() string        { return "attempt exceeded its timeout" }
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }
func (timeoutError) Timeout() bool        { return true }
