-- compatible_from: 1
-- The schema of Mulligan on SQLite (3.37 or later).
--
-- Times and durations are integer microseconds; times are UTC. Columns that hold JSON say so.
-- {p} is replaced by the prefix of every name. The migrator creates and fills the table {p}schema.
-- There are no foreign keys: retention removes jobs, attempts and events at different times.


-- meta: single facts about this database, such as the id below which events were pruned.
CREATE TABLE {p}meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;


-- job: one row per job with its state, schedule, counters, lease, payload and result.
--
-- lane                    what a claim takes from: "queue|kind|dependencies|1" (0: fresh, 1: retry)
-- uses                    names of dependencies, sorted and separated by commas
-- ready_at                since when a claim may find the job in its lane: run_at, or when it was last
--                         put there, if that was later. Only finds lanes; order and due time are run_at
-- deadline_span           length of the deadline, used to renew it for a new generation
-- worker, token           the lease: the worker that runs the job, and the fencing token
-- alone                   the next attempt runs in a process without other jobs
-- announced               the event job.queued is written; if the caller's transaction inserts the
--                         job, upkeep writes it after the commit
-- unique_key              the key as the caller set it
-- unique_hash             hash of the key while this job holds it, else NULL
-- unique_cover            the states in which the job holds its key
-- unique_until            when the job gives its key up, whatever its state
-- choices, choice         JSON list offered while parked; the choice a person made
-- reason                  why the job is in this state, as a sentence
-- error                   JSON of the failure that made the job dead
-- counts                  JSON: failures of this generation by class and by code
-- settings                JSON: what an escalation changed for the next attempts
-- died_code, _class, _group   code, class and fingerprint of the failure; only while dead
-- must_have               the batch fails if this member fails
-- version                 of the payload, as its kind declared it when the job was enqueued
-- trace                   W3C trace context of the enqueuer: traceparent, a space, tracestate
-- waits                   JSON: what a queued job waits for without a slot; NULL once it is due or runs
-- succeeded_by            worker of a job that succeeded with its first attempt. Such a job has no
--                         row in attempt: its own row holds everything that belongs there
CREATE TABLE {p}job (
  run_at           INTEGER NOT NULL,
  ready_at         INTEGER NOT NULL DEFAULT 0,
  created_at       INTEGER NOT NULL,
  token            INTEGER NOT NULL DEFAULT 0,
  cost             REAL NOT NULL DEFAULT 0,
  priority         INTEGER NOT NULL DEFAULT 0,
  generation       INTEGER NOT NULL DEFAULT 1,
  attempt          INTEGER NOT NULL DEFAULT 0,
  failures         INTEGER NOT NULL DEFAULT 0,
  losses           INTEGER NOT NULL DEFAULT 0,
  snoozes          INTEGER NOT NULL DEFAULT 0,
  version          INTEGER NOT NULL DEFAULT 1,
  alone            INTEGER NOT NULL DEFAULT 0,
  announced        INTEGER NOT NULL DEFAULT 0,
  must_have        INTEGER NOT NULL DEFAULT 0 CHECK (NOT must_have OR batch_id IS NOT NULL),
  id               TEXT PRIMARY KEY,
  state            TEXT NOT NULL DEFAULT 'queued',
  lane             TEXT NOT NULL,
  kind             TEXT NOT NULL,
  queue            TEXT NOT NULL,
  owner            TEXT NOT NULL DEFAULT '',
  worker           TEXT,
  unique_hash      TEXT,
  finished_at      INTEGER,
  deadline_at      INTEGER,
  batch_id         TEXT,
  unique_key       TEXT,
  died_code        TEXT CHECK (died_code IS NULL OR state = 'dead'),
  died_class       TEXT CHECK (died_class IS NULL OR state = 'dead'),
  died_group       TEXT CHECK (died_group IS NULL OR state = 'dead'),
  uses             TEXT NOT NULL DEFAULT '',
  reason           TEXT NOT NULL DEFAULT '',
  progress_message TEXT NOT NULL DEFAULT '',
  payload          TEXT NOT NULL,
  started_at       INTEGER,
  first_started_at INTEGER,
  deadline_span    INTEGER,
  max_retries      INTEGER,
  policy           TEXT,
  timeout          INTEGER,
  unique_cover     TEXT,
  unique_until     INTEGER,
  cancel_reason    TEXT,
  choice           TEXT,
  choices          TEXT,
  progress         REAL,
  error            TEXT,
  result           TEXT,
  counts           TEXT,
  settings         TEXT,
  trace            TEXT,
  succeeded_by     TEXT,
  waits            TEXT,
  CONSTRAINT job_sound CHECK (CASE state
    WHEN 'running'
    THEN worker IS NOT NULL AND finished_at IS NULL
         AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN 'succeeded'
    THEN worker IS NULL AND finished_at IS NOT NULL
         AND error IS NULL AND choices IS NULL
    WHEN 'queued'
    THEN worker IS NULL AND finished_at IS NULL
         AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN 'dead'
    THEN worker IS NULL AND finished_at IS NOT NULL
         AND result IS NULL AND error IS NOT NULL AND choices IS NULL
    WHEN 'cancelled'
    THEN worker IS NULL AND finished_at IS NOT NULL
         AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN 'parked'
    THEN worker IS NULL AND finished_at IS NULL
         AND result IS NULL AND error IS NULL
    ELSE 0 END),
  CONSTRAINT job_priority CHECK (priority BETWEEN -9 AND 9),
  CONSTRAINT job_counters CHECK (generation >= 1 AND attempt BETWEEN 0 AND token
                                 AND failures >= 0 AND losses >= 0 AND snoozes >= 0)
) STRICT;

-- Claim: list the lanes that have queued jobs, and read the next jobs of one lane in order.
CREATE INDEX {p}job_for_claim ON {p}job (lane, priority, run_at, id) WHERE state = 'queued';
-- Claim: find the lanes of jobs that have become ready, if there are too many lanes to list all.
-- The second condition keeps SQLite from using this index for statements that do not compare ready_at.
CREATE INDEX {p}job_for_ready ON {p}job (ready_at) WHERE state = 'queued' AND ready_at IS NOT NULL;
-- Sweep and renewal: list the jobs that a worker runs.
CREATE INDEX {p}job_for_sweep ON {p}job (worker) WHERE state = 'running';
-- Enqueue: at most one job holds a unique key.
CREATE UNIQUE INDEX {p}job_for_unique ON {p}job (unique_hash) WHERE unique_hash IS NOT NULL;
-- Upkeep: find waiting jobs whose deadline has passed.
CREATE INDEX {p}job_for_deadline ON {p}job (deadline_at)
  WHERE deadline_at IS NOT NULL AND state IN ('queued', 'parked');
-- Retention: find finished jobs of a state that are old enough. Also finds the newest successes.
CREATE INDEX {p}job_for_retention ON {p}job (state, finished_at) WHERE finished_at IS NOT NULL;
-- Upkeep: find jobs of callers' transactions whose event job.queued is not written yet.
CREATE INDEX {p}job_for_announcement ON {p}job (id) WHERE NOT announced;
-- Search: list and count dead jobs, newest first.
CREATE INDEX {p}job_for_dead ON {p}job (id, died_class, owner, kind, queue) WHERE state = 'dead';
-- Search: list the dead jobs of one code, newest first.
CREATE INDEX {p}job_for_code ON {p}job (died_code, id, owner, kind) WHERE state = 'dead';
-- Search: list the dead jobs of one failure group, newest first.
CREATE INDEX {p}job_for_group ON {p}job (died_group, id, owner, kind) WHERE state = 'dead';
-- Failure groups: count the deaths of each group by time, kind, code and class.
CREATE INDEX {p}job_for_deaths
  ON {p}job (died_group, finished_at, owner, kind, died_code, died_class) WHERE state = 'dead';
-- Failure groups of one owner: count the deaths of each group by time, kind, code and class.
CREATE INDEX {p}job_for_owner_deaths
  ON {p}job (owner, died_group, finished_at, kind, died_code, died_class) WHERE state = 'dead';
-- Search: find jobs whose unique key starts with a prefix. A key may be as long as a payload.
CREATE INDEX {p}job_for_key ON {p}job (substr(unique_key, 1, 200)) WHERE unique_key IS NOT NULL;
-- Batch completion: test for an unfinished member, and count the members of each state.
CREATE INDEX {p}job_for_batch ON {p}job (batch_id, state, must_have, id) WHERE batch_id IS NOT NULL;
-- Search: list the jobs of one owner, newest first.
CREATE INDEX {p}job_for_owner ON {p}job (owner, id) WHERE owner <> '';
-- Search: list the members of one batch, newest first.
CREATE INDEX {p}job_for_batch_list ON {p}job (batch_id, id) WHERE batch_id IS NOT NULL;
-- Search: list and count parked jobs. Holds the kind, so that counting reads no job.
CREATE INDEX {p}job_for_parked ON {p}job (id, kind) WHERE state = 'parked';
-- Search: list and count jobs that wait for a time, an answer or child jobs.
CREATE INDEX {p}job_for_waiting ON {p}job (id, kind) WHERE state = 'queued' AND waits IS NOT NULL;
-- Search: list and count cancelled jobs. Holds the kind, so that counting reads no job.
CREATE INDEX {p}job_for_cancelled ON {p}job (id, kind) WHERE state = 'cancelled';
-- Failure groups: find jobs that were retried manually, to count those that recovered.
CREATE INDEX {p}job_for_retried ON {p}job (id) WHERE generation > 1;


-- job_arg: arguments of jobs that "arg." filters can look up, for kinds that declare an index.
CREATE TABLE {p}job_arg (
  name   TEXT NOT NULL,
  value  TEXT NOT NULL,
  job_id TEXT NOT NULL,
  kind   TEXT NOT NULL,
  PRIMARY KEY (name, value, job_id)
) STRICT, WITHOUT ROWID;

-- Retention: find the arguments of a job that is removed.
CREATE INDEX {p}job_arg_for_retention ON {p}job_arg (job_id);


-- attempt: one row per finished attempt: how it ended, its failure, and the decision about it.
--
-- settled_by              the worker that wrote the row: its own, or the one that found it lost
-- ended, verb             the outcome of the attempt; the decision
-- code ... fingerprint    the failure; public is the text for owners, evidence and private are JSON
-- judged                  JSON: rule table, dissenting rules, changes of policy and next attempt
-- release                 the release that its worker ran
--
-- With a rowid: rows are appended in the order in which attempts end. Ordered by primary key, a
-- second attempt would go between full pages and split them.
CREATE TABLE {p}attempt (
  job_id      TEXT NOT NULL,
  token       INTEGER NOT NULL,
  generation  INTEGER NOT NULL,
  attempt     INTEGER NOT NULL,
  worker      TEXT NOT NULL,
  settled_by  TEXT NOT NULL,
  started_at  INTEGER NOT NULL,
  ended_at    INTEGER NOT NULL,
  ended       TEXT NOT NULL,
  verb        TEXT NOT NULL,
  code        TEXT,
  cls         TEXT,
  rule        TEXT,
  public      TEXT,
  evidence    TEXT,
  private     TEXT,
  fingerprint TEXT,
  next_run_at INTEGER,
  reason      TEXT NOT NULL DEFAULT '',
  cost        REAL NOT NULL DEFAULT 0,
  judged      TEXT,
  release     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job_id, token)
) STRICT;

-- Failure groups: find jobs that once died with a fingerprint, whatever happened to them since.
CREATE INDEX {p}attempt_for_recovery ON {p}attempt (fingerprint, job_id, generation)
  WHERE verb = 'die';


-- attempt_log: the last log records and the stacks of a failed attempt. For operators only.
--
-- records   JSON: [[microseconds since the epoch, level, logger or output, message], ...]
-- stacks    of its threads and tasks when it was stopped
CREATE TABLE {p}attempt_log (
  job_id  TEXT NOT NULL,
  token   INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  records TEXT NOT NULL,
  stacks  TEXT NOT NULL,
  PRIMARY KEY (job_id, token)
) STRICT;

-- Retention: find old logs.
CREATE INDEX {p}attempt_log_for_retention ON {p}attempt_log (at);


-- step: what an attempt saved for later attempts of the same job, by name.
--
-- kind      sleep, wait (for an answer), step, undo (the undo of a step, named "NAME/undo"), or
--           checkpoint (a value without a call)
-- state     waiting (for what ends a wait), running (marked before its call, and without a result), done,
--           failed, undone, forgotten (runs again)
-- number    order in which the steps ended
-- value     JSON of the result; NULL: none yet
-- detail    JSON: uses, tries, undo (the function and its arguments)
-- token     of the attempt that wrote the row
-- actor     who wrote the value by hand; empty: an attempt
CREATE TABLE {p}step (
  job_id     TEXT NOT NULL,
  name       TEXT NOT NULL,
  kind       TEXT NOT NULL,
  state      TEXT NOT NULL,
  number     INTEGER NOT NULL,
  value      TEXT,
  detail     TEXT NOT NULL DEFAULT '{}',
  token      INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at   INTEGER,
  actor      TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;


-- event: the append-only log of everything that happened to jobs, batches and the system.
--
-- Events of one type and time about many jobs share one row, a bundle: `bundle` is their number,
-- `id` the last of their consecutive ids, and `data` has one line per job (see events/queries.py).
CREATE TABLE {p}event (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  at       INTEGER NOT NULL,
  type     TEXT NOT NULL,
  job_id   TEXT,
  batch_id TEXT,
  owner    TEXT NOT NULL DEFAULT '',
  attempt  INTEGER,
  token    INTEGER,
  actor    TEXT NOT NULL DEFAULT '',
  data     TEXT NOT NULL DEFAULT '{}',
  bundle   INTEGER
) STRICT;

-- History of a job: its events that are not in a bundle.
CREATE INDEX {p}event_for_story ON {p}event (job_id) WHERE job_id IS NOT NULL;
-- History of a job: the bundles written at the times at which the job changed.
CREATE INDEX {p}event_for_bundles ON {p}event (at) WHERE bundle IS NOT NULL;
-- History of a batch: events of the batch itself, without those of its members.
CREATE INDEX {p}event_for_batch ON {p}event (batch_id)
  WHERE batch_id IS NOT NULL AND job_id IS NULL;
-- Audit: actions of people, newest first. The condition equals that of by_people.part.sql.
CREATE INDEX {p}event_for_audit ON {p}event (id)
  WHERE actor NOT IN ('', 'alert', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep')
    AND type <> 'job.stale_refused';

-- Events are append-only; retention may delete them.
CREATE TRIGGER {p}events_are_never_changed BEFORE UPDATE ON {p}event
  BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;


-- pruned: how many jobs of a kind, state, owner and code retention has removed, and their id range.
CREATE TABLE {p}pruned (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  at       INTEGER NOT NULL,
  kind     TEXT NOT NULL,
  state    TEXT NOT NULL,
  owner    TEXT NOT NULL,
  code     TEXT NOT NULL,
  count    INTEGER NOT NULL,
  first_id TEXT NOT NULL,
  last_id  TEXT NOT NULL
) STRICT;


-- worker: one row per worker process; renewing the row renews the leases of all its jobs.
--
-- lease                   how long a renewal is valid
-- renewed_mono            CLOCK_MONOTONIC of the host's boot `boot_id` at the last renewal
-- lock_path, _dev, _ino   the file that the worker keeps locked while it is alive
-- drain_reason            reason of a request to finish its jobs and exit, else NULL
-- renewing                how long the last renewals came without a gap, by the worker's monotonic clock
-- memory                  resident bytes of the worker and its runners at the last renewal
CREATE TABLE {p}worker (
  id           TEXT PRIMARY KEY,
  host         TEXT NOT NULL,
  pid          INTEGER NOT NULL,
  boot_id      TEXT NOT NULL,
  lease        INTEGER NOT NULL,
  started_at   INTEGER NOT NULL,
  renewed_at   INTEGER NOT NULL,
  renewed_mono INTEGER NOT NULL,
  closed_at    INTEGER,
  close_reason TEXT NOT NULL DEFAULT '',
  lock_path    TEXT NOT NULL DEFAULT '',
  lock_dev     INTEGER NOT NULL DEFAULT 0,
  lock_ino     INTEGER NOT NULL DEFAULT 0,
  kinds        TEXT NOT NULL DEFAULT '[]',
  queues       TEXT NOT NULL DEFAULT '[]',
  concurrency  INTEGER NOT NULL DEFAULT 1,
  release      TEXT NOT NULL DEFAULT '',
  draining     INTEGER NOT NULL DEFAULT 0,
  drain_reason TEXT,
  renewing     INTEGER NOT NULL DEFAULT 0,
  memory       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Sweep: list the open workers. Not by renewed_at: then every renewal would write index entries.
CREATE INDEX {p}worker_for_sweep ON {p}worker (id) WHERE closed_at IS NULL;


-- hook: errors of the app's hooks (@app.around, @app.on_failure), which change no outcome of a job.
CREATE TABLE {p}hook (
  name   TEXT PRIMARY KEY,
  faults INTEGER NOT NULL,
  error  TEXT NOT NULL,
  at     INTEGER NOT NULL,
  worker TEXT NOT NULL
) STRICT, WITHOUT ROWID;


-- manifest: apps as data (JSON): kinds, policies, rules, dependencies, schedules, release.
-- The body is last, so that SQLite reads the other columns without it.
CREATE TABLE {p}manifest (
  id           TEXT PRIMARY KEY,
  app          TEXT NOT NULL,
  release      TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  last_used_at INTEGER NOT NULL,
  body         TEXT NOT NULL
) STRICT, WITHOUT ROWID;


-- release: the releases of workers, in the order in which they were first seen.
CREATE TABLE {p}release (
  name     TEXT PRIMARY KEY,
  first_at INTEGER NOT NULL,
  last_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;


-- release_kind: attempts of each kind by release. Every worker adds its counts once a second.
--
-- attempts, deaths        attempts that ended after the handler was called; jobs that died in one
-- starts, failures        jobs whose first attempt succeeded or failed; those that failed
-- base_...                the sums of all other releases when this one first counted the kind
-- claimed                 jobs that workers with --canary have claimed
CREATE TABLE {p}release_kind (
  release       TEXT NOT NULL,
  kind          TEXT NOT NULL,
  first_at      INTEGER NOT NULL,
  last_at       INTEGER NOT NULL,
  attempts      INTEGER NOT NULL,
  deaths        INTEGER NOT NULL,
  starts        INTEGER NOT NULL,
  failures      INTEGER NOT NULL,
  base_attempts INTEGER NOT NULL,
  base_starts   INTEGER NOT NULL,
  base_failures INTEGER NOT NULL,
  claimed       INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, release)
) STRICT, WITHOUT ROWID;


-- gate: closed queues, kinds and dependencies, and kinds that a release must not run (its key is
-- "release|kind"). probe_at: when the breaker probes a dependency next.
CREATE TABLE {p}gate (
  scope    TEXT NOT NULL CHECK (scope IN ('queue', 'kind', 'dependency', 'release')),
  key      TEXT NOT NULL,
  since    INTEGER NOT NULL,
  until    INTEGER,
  reason   TEXT NOT NULL DEFAULT '',
  actor    TEXT NOT NULL DEFAULT '',
  probe_at INTEGER,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;


-- limits: concurrency and rate limits that operators set for queues and dependencies.
CREATE TABLE {p}limits (
  scope       TEXT NOT NULL CHECK (scope IN ('queue', 'dependency')),
  key         TEXT NOT NULL,
  concurrency INTEGER,
  rate        REAL,
  since       INTEGER NOT NULL,
  until       INTEGER,
  reason      TEXT NOT NULL DEFAULT '',
  actor       TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;


-- meter: token buckets of rate limits; a claim under a limit locks its row.
CREATE TABLE {p}meter (
  scope  TEXT NOT NULL,
  key    TEXT NOT NULL,
  tokens REAL NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;


-- guard: state (JSON) of the circuit breaker, ramp and retry budget of a dependency or kind.
CREATE TABLE {p}guard (
  scope      TEXT NOT NULL CHECK (scope IN ('dependency', 'kind')),
  key        TEXT NOT NULL,
  version    INTEGER NOT NULL,
  active     INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  body       TEXT NOT NULL,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- Claim: read the guards that restrict claims; a healthy fleet has none.
CREATE INDEX {p}guard_for_claim ON {p}guard (key) WHERE active;


-- tally: outcomes (JSON) to be added to a guard that another worker had locked when they happened.
CREATE TABLE {p}tally (
  id    INTEGER PRIMARY KEY,
  scope TEXT NOT NULL,
  key   TEXT NOT NULL,
  body  TEXT NOT NULL
) STRICT;

-- Guard update: take the tallies of one guard in the order in which they were written.
CREATE INDEX {p}tally_for_fold ON {p}tally (scope, key, id);


-- failure_group: failure groups that people muted or resolved; scope is one owner, or '*' for all.
--
-- in_release              the release that has the fix, or 'next'; empty: every one
-- regressed_at            when a job died although the cause was resolved
CREATE TABLE {p}failure_group (
  fingerprint TEXT NOT NULL,
  scope       TEXT NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('open', 'muted', 'resolved')),
  until       INTEGER,
  note        TEXT NOT NULL DEFAULT '',
  actor       TEXT NOT NULL DEFAULT '',
  at          INTEGER NOT NULL,
  resolved_at INTEGER,
  in_release   TEXT NOT NULL DEFAULT '',
  regressed_at INTEGER,
  assignee     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (fingerprint, scope)
) STRICT, WITHOUT ROWID;


-- cause: failure groups since their first death, kept longer than their dead jobs.
--
-- exception, location      the error as operators see it: "KeyError: 'AT'", "shop.py:18"
-- deaths, hours           all deaths; those of the last 14 days as JSON, by hours since 1970
-- kinds                   JSON: deaths by kind
-- sample                  JSON: the last death, with the private part of its failure
-- releases                JSON: first and last death and number of deaths by release
CREATE TABLE {p}cause (
  fingerprint TEXT NOT NULL PRIMARY KEY,
  code        TEXT NOT NULL,
  cls         TEXT NOT NULL,
  exception   TEXT NOT NULL,
  location    TEXT NOT NULL,
  first_at    INTEGER NOT NULL,
  last_at     INTEGER NOT NULL,
  deaths      INTEGER NOT NULL,
  hours       TEXT NOT NULL,
  kinds       TEXT NOT NULL,
  sample      TEXT NOT NULL,
  releases    TEXT NOT NULL DEFAULT '{}'
) STRICT;

-- Failure groups: list the causes that jobs died of lately, also those without a dead job.
CREATE INDEX {p}cause_for_list ON {p}cause (last_at);


-- batch: definitions of batches. Adding members locks the row in shared mode, sealing exclusively.
--
-- tolerance               how many members may die: "3", or a share such as "10%"
-- on_complete             JSON of the job that is enqueued when the batch completes
CREATE TABLE {p}batch (
  id            TEXT PRIMARY KEY,
  name          TEXT NOT NULL,
  owner         TEXT NOT NULL DEFAULT '',
  tolerance     TEXT NOT NULL DEFAULT '0',
  on_complete   TEXT,
  unique_key    TEXT,
  unique_hash   TEXT,
  created_at    INTEGER NOT NULL,
  sealed_at     INTEGER,
  cancelled_at  INTEGER,
  cancel_reason TEXT,
  parent_id     TEXT,  -- the job that waits for the members
  parent_step   TEXT,  -- the name of its wait
  CONSTRAINT batch_cancelled CHECK (cancelled_at IS NULL OR sealed_at IS NOT NULL)
) STRICT;

-- Creation of a batch: at most one batch holds a unique key.
CREATE UNIQUE INDEX {p}batch_for_unique ON {p}batch (unique_hash) WHERE unique_hash IS NOT NULL;

-- Batches of child jobs: the page of their parent, and the sweep after its end.
CREATE INDEX {p}batch_for_parent ON {p}batch (parent_id) WHERE parent_id IS NOT NULL;


-- batch_progress: outcomes of batches. Apart from batch, so that ending a member never waits for
-- a transaction that adds members.
--
-- previous                outcome of the generation before
-- sealed_event_written    the event batch.sealed is written
-- being_pruned            retention has begun to remove members, so none may be retried
CREATE TABLE {p}batch_progress (
  id                   TEXT PRIMARY KEY,
  generation           INTEGER NOT NULL DEFAULT 1,
  outcome              TEXT,
  outcome_at           INTEGER,
  previous             TEXT,
  sealed_event_written INTEGER NOT NULL DEFAULT 0,
  expires_at           INTEGER,
  expired_at           INTEGER,
  being_pruned         INTEGER NOT NULL DEFAULT 0,
  CONSTRAINT batch_outcome    CHECK (outcome IN ('ready', 'partial', 'failed')),
  CONSTRAINT batch_outcome_at CHECK ((outcome IS NULL) = (outcome_at IS NULL)),
  CONSTRAINT batch_previous   CHECK (previous IS NULL OR previous IN ('ready', 'partial', 'failed')
                                     AND generation > 1),
  CONSTRAINT batch_generation CHECK (generation >= 1),
  CONSTRAINT batch_expired    CHECK (expired_at IS NULL
                                     OR (outcome IS NOT NULL AND expires_at IS NOT NULL)),
  CONSTRAINT batch_being_pruned CHECK (NOT being_pruned OR outcome IS NOT NULL)
) STRICT;

-- Upkeep: find batches without an outcome whose members have all ended.
CREATE INDEX {p}batch_for_sweep ON {p}batch_progress (id) WHERE outcome IS NULL;
-- Upkeep: find batches whose time to expire has come.
CREATE INDEX {p}batch_for_expiry ON {p}batch_progress (expires_at)
  WHERE expires_at IS NOT NULL AND expired_at IS NULL;
-- Retention: find batches that completed long ago.
CREATE INDEX {p}batch_for_retention ON {p}batch_progress (outcome_at) WHERE outcome_at IS NOT NULL;


-- schedule: cron schedules; every slot up to `cursor` has a job or was skipped with an event.
--
-- declared_at             when a manifest in use last declared the schedule, to the day
CREATE TABLE {p}schedule (
  name         TEXT PRIMARY KEY,
  cron         TEXT NOT NULL,
  timezone     TEXT NOT NULL,
  cursor       INTEGER NOT NULL,
  declared_at  INTEGER NOT NULL,
  paused_at    INTEGER,
  paused_until INTEGER,
  pause_reason TEXT NOT NULL DEFAULT '',
  paused_by    TEXT NOT NULL DEFAULT ''
) STRICT;


-- slot: the job of each slot of a schedule; the primary key lets only one worker create it.
CREATE TABLE {p}slot (
  schedule TEXT NOT NULL,
  slot     INTEGER NOT NULL,
  job_id   TEXT NOT NULL,
  PRIMARY KEY (schedule, slot)
) STRICT, WITHOUT ROWID;

-- Retention: find slots that are old enough.
CREATE INDEX {p}slot_for_retention ON {p}slot (slot);


-- operation: bulk actions such as "retry these 10,000 jobs", with their settings and progress.
--
-- filter, fixed           the filter as written; JSON of the filter with relative times resolved
-- params, steps, tallies  JSON: arguments of the action; planned steps; results of each step
-- rate, stop_if           jobs per second; share of repeated failures that stops the operation
-- scope, key, digest      owner or '*'; idempotency key; hash of the whole request
-- recent                  outcomes of the last jobs of this step, one letter each
-- tokens, tokens_at       token bucket that enforces the rate
-- active, due_at          there is work left; when a worker may continue it
-- moved_at                when a job was last sent or ended
CREATE TABLE {p}operation (
  id          TEXT PRIMARY KEY,
  action      TEXT NOT NULL CHECK (action IN ('retry', 'cancel', 'discard', 'release', 'move')),
  filter      TEXT NOT NULL,
  fixed       TEXT NOT NULL,
  params      TEXT NOT NULL DEFAULT '{}',
  steps       TEXT NOT NULL,
  rate        REAL NOT NULL CHECK (rate > 0),
  stop_if     REAL NOT NULL CHECK (stop_if BETWEEN 0 AND 1),
  scope       TEXT NOT NULL,
  actor       TEXT NOT NULL DEFAULT '',
  reason      TEXT NOT NULL DEFAULT '',
  key         TEXT,
  digest      TEXT NOT NULL,
  state       TEXT NOT NULL
    CHECK (state IN ('gathering', 'running', 'paused', 'stopped', 'aborted', 'finished')),
  step        INTEGER NOT NULL DEFAULT 0,
  total       INTEGER NOT NULL DEFAULT 0,
  tallies     TEXT NOT NULL DEFAULT '[]',
  recent      TEXT NOT NULL DEFAULT '',
  tokens      REAL NOT NULL DEFAULT 0,
  tokens_at   INTEGER NOT NULL DEFAULT 0,
  version     INTEGER NOT NULL DEFAULT 1,
  active      INTEGER NOT NULL DEFAULT 1,
  due_at      INTEGER NOT NULL,
  moved_at    INTEGER NOT NULL,
  created_at  INTEGER NOT NULL,
  started_at  INTEGER,
  finished_at INTEGER,
  note        TEXT NOT NULL DEFAULT '',
  CHECK ((state IN ('stopped', 'aborted', 'finished')) = (finished_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- Worker: find operations that are due to continue.
CREATE INDEX {p}operation_for_turn ON {p}operation (due_at) WHERE active;
-- Start of an operation: at most one has an idempotency key.
CREATE UNIQUE INDEX {p}operation_for_key ON {p}operation (scope, key) WHERE key IS NOT NULL;
-- Start of an operation: at most one unfinished operation has the same content.
CREATE UNIQUE INDEX {p}operation_for_twin ON {p}operation (digest)
  WHERE state IN ('gathering', 'running', 'paused');
-- Retention: find operations that finished long ago.
CREATE INDEX {p}operation_for_retention ON {p}operation (finished_at) WHERE NOT active;


-- operation_item: one row per job of an operation: how it was at the start, and what became of it.
--
-- place                   position within the operation, from 1, in order of job ids
-- initial_state           state of the job when the operation started
-- cause, code             its failure group and code at that time
CREATE TABLE {p}operation_item (
  operation     TEXT NOT NULL,
  place         INTEGER NOT NULL,
  job_id        TEXT NOT NULL,
  generation    INTEGER NOT NULL,
  initial_state TEXT NOT NULL,
  cause         TEXT,
  code          TEXT,
  state         TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'ended')),
  outcome       TEXT CHECK (outcome IN ('recovered', 'same', 'other', 'done', 'refused', 'skipped')),
  message       TEXT NOT NULL DEFAULT '',
  ended_at      INTEGER,
  PRIMARY KEY (operation, place),
  CHECK ((state = 'ended') = (outcome IS NOT NULL) AND (state = 'ended') = (ended_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- Preview: test whether a job belongs to an operation. Unique: a job is an item once.
CREATE UNIQUE INDEX {p}operation_item_for_job ON {p}operation_item (operation, job_id);
-- Worker: read the next items to act on.
CREATE INDEX {p}operation_item_for_sending ON {p}operation_item (operation, place)
  WHERE state = 'waiting';
-- Worker: read the items whose jobs were retried and may have ended.
CREATE INDEX {p}operation_item_for_ends ON {p}operation_item (operation, place)
  WHERE state = 'sent';


-- reader: how far each consumer has read the event log; a consumer locks its row while it reads.
CREATE TABLE {p}reader (
  name       TEXT PRIMARY KEY,
  cursor     INTEGER NOT NULL,
  body       TEXT NOT NULL DEFAULT '',
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;


-- subscription: which events are sent where. If `declared`, the manifest holds the definition.
--
-- patterns                event types, separated by commas
-- form                    one message per event, or one per incident
-- body                    JSON of the channel's configuration, with its secrets
-- endpoint                the dependency that deliveries use
-- after                   only events with a higher id are sent
CREATE TABLE {p}subscription (
  id            TEXT PRIMARY KEY,
  declared      INTEGER NOT NULL,
  name          TEXT NOT NULL DEFAULT '',
  patterns      TEXT NOT NULL DEFAULT '',
  owner         TEXT,
  batch_id      TEXT,
  filter        TEXT NOT NULL DEFAULT '',
  form          TEXT NOT NULL CHECK (form IN ('each', 'incident')),
  channel       TEXT NOT NULL DEFAULT '',
  body          TEXT NOT NULL DEFAULT '{}',
  endpoint      TEXT NOT NULL DEFAULT '',
  after         INTEGER NOT NULL,
  state         TEXT NOT NULL DEFAULT 'on' CHECK (state IN ('on', 'off')),
  reason        TEXT NOT NULL DEFAULT '',
  version       INTEGER NOT NULL DEFAULT 1,
  failures      INTEGER NOT NULL DEFAULT 0,
  failing_since INTEGER,
  created_at    INTEGER NOT NULL,
  created_by    TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

-- Retention: find subscriptions of batches that were removed.
CREATE INDEX {p}subscription_for_batch ON {p}subscription (batch_id) WHERE batch_id IS NOT NULL;


-- incident: failures with one cause that a subscription reports to an owner as one growing message.
--
-- key                     a failure group or a batch
-- batch_id                the batch of its jobs, if each batch has its own incident
-- due_at                  when the dispatcher looks at the incident next
CREATE TABLE {p}incident (
  id           TEXT PRIMARY KEY,
  subscription TEXT NOT NULL,
  owner        TEXT NOT NULL,
  key          TEXT NOT NULL,
  batch_id     TEXT NOT NULL DEFAULT '',
  body         TEXT NOT NULL,
  due_at       INTEGER NOT NULL,
  opened_at    INTEGER NOT NULL,
  closed_at    INTEGER
) STRICT, WITHOUT ROWID;

-- Dispatcher: find the open incident that an event belongs to. Unique: there is at most one.
CREATE UNIQUE INDEX {p}incident_for_fold ON {p}incident (key, subscription, owner, batch_id)
  WHERE closed_at IS NULL;
-- Dispatcher: find the open incidents that the end of a batch closes.
CREATE INDEX {p}incident_for_batch ON {p}incident (batch_id) WHERE closed_at IS NULL AND batch_id <> '';
-- Dispatcher: find open incidents that are due.
CREATE INDEX {p}incident_for_turn ON {p}incident (due_at) WHERE closed_at IS NULL;
-- Retention: find incidents that were closed long ago.
CREATE INDEX {p}incident_for_retention ON {p}incident (closed_at) WHERE closed_at IS NOT NULL;


-- notified: messages that a subscription sent to an owner, and withheld, in the hour from `since`.
CREATE TABLE {p}notified (
  subscription TEXT NOT NULL,
  owner        TEXT NOT NULL,
  since        INTEGER NOT NULL,
  sent         INTEGER NOT NULL,
  withheld     INTEGER NOT NULL,
  PRIMARY KEY (subscription, owner)
) STRICT, WITHOUT ROWID;


-- alert: the state of each alert rule for each key; key '*' is a silence of the whole rule.
--
-- evaluated_at            when the rule was last evaluated for this key
-- acted                   JSON of the alert's action that is still in force, or empty
CREATE TABLE {p}alert (
  rule         TEXT NOT NULL,
  key          TEXT NOT NULL,
  state        TEXT NOT NULL CHECK (state IN ('pending', 'firing', 'resolved', 'silenced')),
  since        INTEGER NOT NULL,
  evaluated_at INTEGER NOT NULL,
  value        REAL NOT NULL,
  evidence     TEXT NOT NULL,
  acted        TEXT NOT NULL DEFAULT '',
  until        INTEGER,
  actor        TEXT NOT NULL DEFAULT '',
  reason       TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (rule, key)
) STRICT, WITHOUT ROWID;


-- stat: counters per minute, after a day per hour; minute 0 holds the totals, which only grow.
CREATE TABLE {p}stat (
  minute INTEGER NOT NULL,
  name   TEXT NOT NULL,
  labels TEXT NOT NULL,
  n      INTEGER NOT NULL,
  total  REAL NOT NULL,
  PRIMARY KEY (minute, name, labels)
) STRICT, WITHOUT ROWID;


-- api_key: keys for the HTTP API, stored as hashes; scope is one owner, or '*' for all.
CREATE TABLE {p}api_key (
  id           TEXT PRIMARY KEY,
  hash         TEXT NOT NULL,
  name         TEXT NOT NULL DEFAULT '',
  scope        TEXT NOT NULL CHECK (scope <> ''),
  role         TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at   INTEGER NOT NULL,
  created_by   TEXT NOT NULL DEFAULT '',
  expires_at   INTEGER,
  last_used_at INTEGER,
  revoked_at   INTEGER
) STRICT, WITHOUT ROWID;


-- answer: responses to HTTP requests with an Idempotency-Key.
--
-- at                      of the response, or of the last renewal of its claim
-- claim                   of the request that runs; NULL if it stored its answer in one transaction
-- status                  NULL until there is a response
CREATE TABLE {p}answer (
  key_id  TEXT NOT NULL,
  name    TEXT NOT NULL,
  request TEXT NOT NULL,
  at      INTEGER NOT NULL,
  claim   TEXT,
  status  INTEGER,
  body    TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (key_id, name)
) STRICT, WITHOUT ROWID;

-- Retention: find responses that are old enough.
CREATE INDEX {p}answer_for_retention ON {p}answer (at);
-- Requests that run: find their claims.
CREATE INDEX {p}answer_for_claims ON {p}answer (claim) WHERE status IS NULL;


-- session: dashboard sessions, and sign-in links that work once (is_link), stored as hashes.
CREATE TABLE {p}session (
  hash       TEXT PRIMARY KEY,
  is_link    INTEGER NOT NULL,
  key_id     TEXT,
  scope      TEXT NOT NULL CHECK (scope <> ''),
  role       TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Retention: find expired sessions and links.
CREATE INDEX {p}session_for_retention ON {p}session (expires_at);
