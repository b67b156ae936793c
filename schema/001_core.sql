-- Rota's tables, version 1. Times are microseconds since the Unix epoch, UTC.
-- The application's own tables may live beside these in the same file.

CREATE TABLE rota_meta (
	key   TEXT PRIMARY KEY,
	value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row is one job, whatever brought it: an enqueue, a sweep, a schedule, a
-- replay. The whole future is: SELECT … WHERE state = 'pending' ORDER BY run_at.
CREATE TABLE rota_jobs (
	seq             INTEGER PRIMARY KEY,          -- order of arrival; breaks ties
	id              TEXT    NOT NULL UNIQUE,      -- UUIDv7
	kind            TEXT    NOT NULL,
	state           TEXT    NOT NULL CHECK (state IN
		('pending', 'paused', 'running', 'held', 'succeeded', 'dead', 'cancelled')),
	args            TEXT    NOT NULL,             -- JSON
	priority        INTEGER NOT NULL DEFAULT 0,   -- the higher runs first
	run_at          INTEGER NOT NULL,             -- not before
	attempt         INTEGER NOT NULL DEFAULT 0,   -- attempts opened so far
	spent           INTEGER NOT NULL DEFAULT 0,   -- of those, counted against the bound
	deaths          INTEGER NOT NULL DEFAULT 0,   -- of those, ended by the death of the process
	alone           INTEGER NOT NULL DEFAULT 0,   -- 1: one more death ends it; such jobs run one at a time
	doubt           INTEGER NOT NULL DEFAULT 0,   -- 1: the last outcome is unknown
	retry           TEXT,                         -- JSON; the enqueuer's own policy
	unique_key      TEXT,
	once            INTEGER NOT NULL DEFAULT 0,   -- 1: unique_key is taken for ever
	idempotency_key TEXT    NOT NULL,
	group_key       TEXT,                         -- one at a time
	in_line         INTEGER NOT NULL DEFAULT 0,   -- 1: another job of the group goes first
	labels          TEXT,                         -- JSON object of strings, no secrets
	schedule        TEXT,
	spec            TEXT,                         -- only on a schedule's next occurrence
	zone            TEXT,                         -- likewise
	rule            TEXT,                         -- likewise; JSON, see schedule.go
	scheduled_for   INTEGER,                      -- the instant that it was meant for, if that was not its enqueue
	origin          TEXT    NOT NULL DEFAULT '',  -- of an occurrence: '' due, 'now' or 'backfill' by a person
	resume_at       INTEGER,                      -- when a paused schedule goes on by itself
	replay_of       TEXT,
	token           INTEGER,                      -- of the runner that claimed it last
	cancel_asked    INTEGER,                      -- when a person asked a running job to stop
	reason          TEXT,                         -- why it is in its state
	error           TEXT,                         -- safe text of the last failure
	created_at      INTEGER NOT NULL,
	started_at      INTEGER,                      -- of the first attempt
	finished_at     INTEGER
) STRICT;

-- Due work, led by kind, so that a kind that may not run costs the others nothing.
CREATE INDEX rota_jobs_due ON rota_jobs (kind, priority, run_at)
	WHERE state = 'pending' AND in_line = 0 AND alone = 0;
CREATE INDEX rota_jobs_alone ON rota_jobs (run_at)
	WHERE state = 'pending' AND in_line = 0 AND alone = 1;
CREATE INDEX rota_jobs_running ON rota_jobs (token)
	WHERE state = 'running';
CREATE UNIQUE INDEX rota_jobs_unique ON rota_jobs (kind, unique_key)
	WHERE unique_key IS NOT NULL
	AND (once = 1 OR state IN ('pending', 'paused', 'running', 'held'));
-- The front of a group: what runs, or would run next. The index is the proof
-- that a group's jobs run one at a time. The others stand in line behind it.
CREATE UNIQUE INDEX rota_jobs_front ON rota_jobs (kind, group_key)
	WHERE group_key IS NOT NULL AND in_line = 0 AND state IN ('pending', 'running');
CREATE INDEX rota_jobs_line ON rota_jobs (kind, group_key, run_at)
	WHERE group_key IS NOT NULL AND in_line = 1 AND state = 'pending';
CREATE INDEX rota_jobs_cancel ON rota_jobs (token)
	WHERE state = 'running' AND cancel_asked IS NOT NULL;
CREATE UNIQUE INDEX rota_jobs_next ON rota_jobs (schedule)
	WHERE spec IS NOT NULL;
CREATE UNIQUE INDEX rota_jobs_slot ON rota_jobs (schedule, scheduled_for, origin)
	WHERE schedule IS NOT NULL AND origin <> 'now';
CREATE INDEX rota_jobs_resume ON rota_jobs (resume_at)
	WHERE resume_at IS NOT NULL;
CREATE INDEX rota_jobs_occurrence ON rota_jobs (schedule)
	WHERE schedule IS NOT NULL AND state IN ('pending', 'paused', 'running');
CREATE INDEX rota_jobs_held ON rota_jobs (kind)
	WHERE state = 'held';
CREATE INDEX rota_jobs_finished ON rota_jobs (state, finished_at)
	WHERE finished_at IS NOT NULL;

-- One row is one try of a job. It is opened by the claim, closed once, and
-- from then on only read.
CREATE TABLE rota_attempts (
	job_id      TEXT    NOT NULL,
	number      INTEGER NOT NULL,                 -- 1, 2, 3, … without a gap
	runner      TEXT    NOT NULL,
	token       INTEGER NOT NULL,
	claimed_at  INTEGER NOT NULL,
	started_at  INTEGER,                          -- null: the handler has provably not begun
	finished_at INTEGER,
	outcome     TEXT CHECK (outcome IN ('succeeded', 'retry', 'failed', 'unknown',
		'interrupted', 'cancelled', 'snoozed', 'skipped')),
	class       TEXT,
	decision    TEXT,                             -- the state that the job went to
	reason      TEXT,                             -- why
	error       TEXT,
	next_at     INTEGER,                          -- set if and only if it is tried again
	bound       INTEGER,                          -- attempts allowed, as the decision saw it
	delay_min   INTEGER,                          -- range that the delay was drawn from
	delay_max   INTEGER,
	stack       TEXT,                             -- of a panic
	note        TEXT,                             -- JSON object: what the handler added
	PRIMARY KEY (job_id, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX rota_attempts_open ON rota_attempts (token)
	WHERE outcome IS NULL;

CREATE TABLE rota_leases (
	name        TEXT    PRIMARY KEY,
	holder      TEXT    NOT NULL,                 -- '' when released
	token       INTEGER NOT NULL,                 -- grows by one at every change of holder
	ttl         INTEGER NOT NULL,
	locked      INTEGER NOT NULL,                 -- 1: the holder also holds the file lock
	acquired_at INTEGER NOT NULL,
	renewed_at  INTEGER NOT NULL,
	expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Kinds that a person has stopped; '*' stands for all of them.
CREATE TABLE rota_pauses (
	kind   TEXT    PRIMARY KEY,
	since  INTEGER NOT NULL,
	actor  TEXT    NOT NULL,
	reason TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- What people did, and why. Append-only.
CREATE TABLE rota_actions (
	seq      INTEGER PRIMARY KEY,
	at       INTEGER NOT NULL,
	actor    TEXT    NOT NULL,
	action   TEXT    NOT NULL,
	job_id   TEXT,
	kind     TEXT,
	schedule TEXT,
	reason   TEXT    NOT NULL,
	detail   TEXT                                 -- JSON
) STRICT;

CREATE INDEX rota_actions_job ON rota_actions (job_id) WHERE job_id IS NOT NULL;

-- Evidence is written once. These make the honest mistake an error; retention
-- says that it is at work by a row in rota_meta, in its own transaction.
CREATE TRIGGER rota_attempts_closed BEFORE UPDATE ON rota_attempts
	WHEN OLD.outcome IS NOT NULL OR NEW.job_id <> OLD.job_id OR NEW.number <> OLD.number
BEGIN SELECT RAISE(ABORT, 'rota: a closed attempt is never edited, an open one never moved'); END;

-- REPLACE removes what is in its way without firing a trigger of DELETE. (Jobs
-- have no such guard: it would make every enqueue a third slower.)
CREATE TRIGGER rota_attempts_once BEFORE INSERT ON rota_attempts
	WHEN EXISTS (SELECT 1 FROM rota_attempts WHERE job_id = NEW.job_id AND number = NEW.number)
BEGIN SELECT RAISE(ABORT, 'rota: an attempt is never replaced'); END;

CREATE TRIGGER rota_attempts_kept BEFORE DELETE ON rota_attempts
	WHEN NOT EXISTS (SELECT 1 FROM rota_meta WHERE key = 'retention')
BEGIN SELECT RAISE(ABORT, 'rota: attempts are removed by Prune only'); END;

CREATE TRIGGER rota_jobs_ended BEFORE UPDATE ON rota_jobs
	WHEN OLD.state IN ('succeeded', 'dead', 'cancelled') OR NEW.attempt < OLD.attempt
BEGIN SELECT RAISE(ABORT, 'rota: an ended job is never edited, nor are attempts taken back; replay it'); END;

CREATE TRIGGER rota_jobs_same BEFORE UPDATE OF id, seq ON rota_jobs
BEGIN SELECT RAISE(ABORT, 'rota: a job keeps its id'); END;

CREATE TRIGGER rota_jobs_kept BEFORE DELETE ON rota_jobs
	WHEN (OLD.attempt > 0 OR OLD.finished_at IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM rota_meta WHERE key = 'retention')
BEGIN SELECT RAISE(ABORT, 'rota: jobs are removed by Prune only'); END;

CREATE TRIGGER rota_actions_once BEFORE INSERT ON rota_actions
	WHEN EXISTS (SELECT 1 FROM rota_actions WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'rota: an action on record is never replaced'); END;

CREATE TRIGGER rota_actions_kept_update BEFORE UPDATE ON rota_actions
BEGIN SELECT RAISE(ABORT, 'rota: an action on record is never edited'); END;

CREATE TRIGGER rota_actions_kept_delete BEFORE DELETE ON rota_actions
BEGIN SELECT RAISE(ABORT, 'rota: an action on record is never removed'); END;
