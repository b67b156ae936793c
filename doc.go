// Package rota keeps cron-triggered and ad-hoc jobs in one durable SQLite table
// and runs them, one process at a time, with evidence for every attempt.
//
// Most programs need five names: [Open] a database file, say with [Handle] which
// function does a [Kind] of work, enqueue with [Kind.Enqueue] or repeat with
// [Kind.Declare], and [Scheduler.Run]. The file may hold the program's own
// tables as well.
//
// # Model
//
// A job is a row. An enqueue is a row, a retry is the same row with a later
// RunAt, the next firing of a schedule is a row like any other. What runs next
// is decided by what is not yet done, never by a window of time: a process that
// was down for a week finds its work where it left it.
//
// One process is the runner. It holds a lease with a fencing token that grows by
// one at every change of holder; every write of the runner checks the token in
// the same transaction, so a runner that was paused, cut off or replaced can't
// write any more. Other processes enqueue, look, and wait for their turn.
//
// All writes go through one goroutine, which commits what has gathered while the
// last commit was under way. Alone, a write is committed at once; under load many
// share a commit, which is what makes full durability affordable.
//
// Every claim opens an [Attempt] and every end closes it, in the transaction that
// moves the job: what happened, how it was classified, what was decided, why,
// and when it goes on. A closed attempt is never edited. What can't be known, a
// timeout, a cut connection, the death of the process, is recorded as unknown,
// and the kind's [OnUnknown] decides: retry, hold for a person, or probe.
//
// Every failure goes through one [Retry] policy: capped, jittered, bounded in
// attempts and in time. What ends badly stays as [Dead] or [Held] for a person
// to inspect, [Scheduler.Replay] or [Scheduler.Resolve].
//
// # Guarantees
//
//  1. An enqueue that returned nil is not lost, through a crash or a power cut.
//  2. At most one runner's writes are accepted at any instant.
//  3. A job runs at least once until it is terminal; with [Job.CompleteTx] its
//     effects in the same database happen exactly once.
//  4. Attempts are numbered 1 to n without a gap; those that count never exceed
//     the bound; each closed attempt has exactly one outcome.
//  5. The delay before the next attempt lies within the policy's range: never
//     negative, never beyond cap and jitter, whatever the number.
//  6. The idempotency key is the same for all attempts and replays of a job, and
//     differs between jobs.
//  7. A schedule has exactly one pending or paused occurrence, and no instant of
//     it runs twice.
//  8. A dead, held or cancelled job never runs again by itself, and evidence is
//     never edited.
//
// # What is not promised
//
// A lease can't take back an effect outside the database that a paused runner
// had already begun: show [Job].IdempotencyKey to whoever does the effect. A disk
// that lies about its fsync loses what it confirmed; [DurabilityNormal] may lose
// the last commits in a power cut. SQLite's WAL needs a local file system: a file
// on NFS or SMB is not supported. A process that is frozen in the middle of a
// commit keeps SQLite's write lock until it goes on or dies. And nothing can
// stop a goroutine: a handler that ignores its context is recorded as unknown,
// and goes on.
package rota
