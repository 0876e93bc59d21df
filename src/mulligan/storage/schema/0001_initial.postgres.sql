-- compatible_from: 1
-- The schema of Mulligan on PostgreSQL.
--
-- Times and durations are integer microseconds; times are UTC. Columns that hold JSON say so.
-- Text that is compared or sorted is COLLATE "C", as Python and SQLite compare it.
-- {p} is replaced by the name of the schema and a dot.
-- The migrator creates and fills the table {p}schema.
-- There are no foreign keys: retention removes jobs, attempts and events at different times.


-- The clock of the whole fleet, in microseconds. STABLE, so that a claim can use the index on
-- run_at. Tests replace this function to move time.
CREATE FUNCTION {p}now_us() RETURNS BIGINT LANGUAGE sql STABLE
  AS $$ SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS BIGINT) $$;


-- meta: single facts about this database, such as the id below which events were pruned.
CREATE TABLE {p}meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
);


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
--
-- Columns of fixed width come first, then those of indexes: an update compares the columns of all
-- indexes, and the server finds a column behind a text or a NULL only by walking over those before.
--
-- Most rows change three times within seconds, and each version has an entry in the primary key:
-- vacuum early, leave room on the pages of both, move long values out of line. The constraints are
-- short because PostgreSQL parses them again for every statement that writes a job.
CREATE TABLE {p}job (
  run_at           BIGINT NOT NULL,
  ready_at         BIGINT NOT NULL DEFAULT 0,
  created_at       BIGINT NOT NULL,
  token            BIGINT NOT NULL DEFAULT 0,
  cost             DOUBLE PRECISION NOT NULL DEFAULT 0,
  priority         INTEGER NOT NULL DEFAULT 0,
  generation       INTEGER NOT NULL DEFAULT 1,
  attempt          INTEGER NOT NULL DEFAULT 0,
  failures         INTEGER NOT NULL DEFAULT 0,
  losses           INTEGER NOT NULL DEFAULT 0,
  snoozes          INTEGER NOT NULL DEFAULT 0,
  version          INTEGER NOT NULL DEFAULT 1,
  alone            BOOLEAN NOT NULL DEFAULT false,
  announced        BOOLEAN NOT NULL DEFAULT false,
  must_have        BOOLEAN NOT NULL DEFAULT false
    CONSTRAINT job_must_have CHECK (NOT must_have OR batch_id IS NOT NULL),
  id               TEXT COLLATE "C" PRIMARY KEY WITH (fillfactor = 50),
  state            TEXT NOT NULL DEFAULT 'queued',
  lane             TEXT COLLATE "C" NOT NULL,
  kind             TEXT COLLATE "C" NOT NULL,
  queue            TEXT COLLATE "C" NOT NULL,
  owner            TEXT NOT NULL DEFAULT '',
  worker           TEXT COLLATE "C",
  unique_hash      TEXT COLLATE "C",
  finished_at      BIGINT,
  deadline_at      BIGINT,
  batch_id         TEXT,
  unique_key       TEXT,
  died_code        TEXT COLLATE "C",
  died_class       TEXT COLLATE "C",
  died_group       TEXT COLLATE "C",
  uses             TEXT NOT NULL DEFAULT '',
  reason           TEXT NOT NULL DEFAULT '',
  progress_message TEXT NOT NULL DEFAULT '',
  payload          TEXT NOT NULL,
  started_at       BIGINT,
  first_started_at BIGINT,
  deadline_span    BIGINT,
  max_retries      INTEGER,
  policy           TEXT,
  timeout          BIGINT,
  unique_cover     TEXT,
  unique_until     BIGINT,
  cancel_reason    TEXT,
  choice           TEXT,
  choices          TEXT,
  progress         DOUBLE PRECISION,
  error            TEXT,
  result           TEXT,
  counts           TEXT,
  settings         TEXT,
  trace            TEXT,
  succeeded_by     TEXT,
  waits            TEXT,
  CONSTRAINT job_sound CHECK (
    (state = 'running') = (worker IS NOT NULL) AND (state = 'dead') = (error IS NOT NULL)
    AND state = ANY (CASE WHEN finished_at IS NULL THEN '{queued,running,parked}'::text[]
                          ELSE '{succeeded,dead,cancelled}' END)
    AND (result IS NULL OR state = 'succeeded') AND (choices IS NULL OR state = 'parked')
    AND (error IS NOT NULL OR COALESCE(died_code, died_class, died_group) IS NULL)),
  CONSTRAINT job_priority CHECK (abs(priority) <= 9),
  CONSTRAINT job_counters CHECK (LEAST(failures, losses, snoozes, attempt, generation - 1) >= 0
                                 AND attempt <= token)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, toast_tuple_target = 1024);

-- Claim: list the lanes that have queued jobs, and read the next jobs of one lane in order.
CREATE INDEX job_for_claim ON {p}job (lane, priority, run_at, id) WHERE state = 'queued';
-- Claim: find the lanes of jobs that have become ready, if there are too many lanes to list all.
-- The second condition keeps the planner from using this index for statements that do not contain it.
CREATE INDEX job_for_ready ON {p}job (ready_at) WHERE state = 'queued' AND ready_at > 0;
-- Sweep and renewal: list the jobs that a worker runs.
CREATE INDEX job_for_sweep ON {p}job (worker) WHERE state = 'running';
-- Enqueue: at most one job holds a unique key.
CREATE UNIQUE INDEX job_for_unique ON {p}job (unique_hash) WHERE unique_hash IS NOT NULL;
-- Upkeep: find waiting jobs whose deadline has passed.
CREATE INDEX job_for_deadline ON {p}job (deadline_at)
  WHERE deadline_at IS NOT NULL AND state IN ('queued', 'parked');
-- Retention: find finished jobs of a state that are old enough. Also finds the newest successes.
CREATE INDEX job_for_retention ON {p}job (state, finished_at) WHERE finished_at IS NOT NULL;
-- Upkeep: find jobs of callers' transactions whose event job.queued is not written yet.
CREATE INDEX job_for_announcement ON {p}job (id) WHERE NOT announced;
-- Search: list and count dead jobs, newest first.
CREATE INDEX job_for_dead ON {p}job (id, died_class, owner, kind, queue) WHERE state = 'dead';
-- Search: list the dead jobs of one code, newest first.
CREATE INDEX job_for_code ON {p}job (died_code, id, owner, kind) WHERE state = 'dead';
-- Search: list the dead jobs of one failure group, newest first.
CREATE INDEX job_for_group ON {p}job (died_group, id, owner, kind) WHERE state = 'dead';
-- Failure groups: count the deaths of each group by time, kind, code and class.
CREATE INDEX job_for_deaths
  ON {p}job (died_group, finished_at, owner, kind, died_code, died_class) WHERE state = 'dead';
-- Failure groups of one owner: count the deaths of each group by time, kind, code and class.
CREATE INDEX job_for_owner_deaths
  ON {p}job (owner, died_group, finished_at, kind, died_code, died_class) WHERE state = 'dead';
-- Search: find jobs whose unique key starts with a prefix. A key may be longer than an index entry.
CREATE INDEX job_for_key ON {p}job (substr(unique_key, 1, 200) COLLATE "C") WHERE unique_key IS NOT NULL;
-- Batch completion: test for an unfinished member, and count the members of each state.
CREATE INDEX job_for_batch ON {p}job (batch_id, state, must_have, id) WHERE batch_id IS NOT NULL;
-- Search: list the jobs of one owner, newest first.
CREATE INDEX job_for_owner ON {p}job (owner, id) WHERE owner <> '';
-- Search: list the members of one batch, newest first.
CREATE INDEX job_for_batch_list ON {p}job (batch_id, id) WHERE batch_id IS NOT NULL;
-- Search: list and count parked jobs. Holds the kind, so that counting reads no job.
CREATE INDEX job_for_parked ON {p}job (id, kind) WHERE state = 'parked';
-- Search: list and count jobs that wait for a time, an answer or child jobs.
CREATE INDEX job_for_waiting ON {p}job (id, kind) WHERE state = 'queued' AND waits IS NOT NULL;
-- Search: list and count cancelled jobs. Holds the kind, so that counting reads no job.
CREATE INDEX job_for_cancelled ON {p}job (id, kind) WHERE state = 'cancelled';
-- Failure groups: find jobs that were retried manually, to count those that recovered.
CREATE INDEX job_for_retried ON {p}job (id) WHERE generation > 1;


-- job_arg: arguments of jobs that "arg." filters can look up, for kinds that declare an index.
CREATE TABLE {p}job_arg (
  name   TEXT COLLATE "C" NOT NULL,
  value  TEXT COLLATE "C" NOT NULL,
  job_id TEXT COLLATE "C" NOT NULL,
  kind   TEXT NOT NULL,
  PRIMARY KEY (name, value, job_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Retention: find the arguments of a job that is removed.
CREATE INDEX job_arg_for_retention ON {p}job_arg (job_id);


-- attempt: one row per finished attempt: how it ended, its failure, and the decision about it.
--
-- settled_by              the worker that wrote the row: its own, or the one that found it lost
-- ended, verb             the outcome of the attempt; the decision
-- code ... fingerprint    the failure; public is the text for owners, evidence and private are JSON
-- judged                  JSON: rule table, dissenting rules, changes of policy and next attempt
-- release                 the release that its worker ran
CREATE TABLE {p}attempt (
  job_id      TEXT COLLATE "C" NOT NULL,
  token       BIGINT NOT NULL,
  generation  INTEGER NOT NULL,
  attempt     INTEGER NOT NULL,
  worker      TEXT COLLATE "C" NOT NULL,
  settled_by  TEXT NOT NULL,
  started_at  BIGINT NOT NULL,
  ended_at    BIGINT NOT NULL,
  ended       TEXT NOT NULL,
  verb        TEXT NOT NULL,
  code        TEXT,
  cls         TEXT,
  rule        TEXT,
  public      TEXT,
  evidence    TEXT,
  private     TEXT,
  fingerprint TEXT,
  next_run_at BIGINT,
  reason      TEXT NOT NULL DEFAULT '',
  cost        DOUBLE PRECISION NOT NULL DEFAULT 0,
  judged      TEXT,
  release     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job_id, token)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Failure groups: find jobs that once died with a fingerprint, whatever happened to them since.
CREATE INDEX attempt_for_recovery ON {p}attempt (fingerprint, job_id, generation)
  WHERE verb = 'die';


-- attempt_log: the last log records and the stacks of a failed attempt. For operators only.
--
-- records   JSON: [[microseconds since the epoch, level, logger or output, message], ...]
-- stacks    of its threads and tasks when it was stopped
CREATE TABLE {p}attempt_log (
  job_id  TEXT COLLATE "C" NOT NULL,
  token   BIGINT NOT NULL,
  at      BIGINT NOT NULL,
  records TEXT NOT NULL,
  stacks  TEXT NOT NULL,
  PRIMARY KEY (job_id, token)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Retention: find old logs.
CREATE INDEX attempt_log_for_retention ON {p}attempt_log (at);


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
  job_id     TEXT COLLATE "C" NOT NULL,
  name       TEXT NOT NULL,
  kind       TEXT NOT NULL,
  state      TEXT NOT NULL,
  number     INTEGER NOT NULL,
  value      TEXT,
  detail     TEXT NOT NULL DEFAULT '{}',
  token      BIGINT NOT NULL,
  started_at BIGINT NOT NULL,
  ended_at   BIGINT,
  actor      TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);


-- event: the append-only log of everything that happened to jobs, batches and the system.
--
-- Events of one type and time about many jobs share one row, a bundle: `bundle` is their number,
-- `id` the last of their consecutive ids, and `data` has one line per job (see events/queries.py).
CREATE TABLE {p}event (
  id       BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  at       BIGINT NOT NULL,
  type     TEXT NOT NULL,
  job_id   TEXT COLLATE "C",
  batch_id TEXT,
  owner    TEXT NOT NULL DEFAULT '',
  attempt  INTEGER,
  token    BIGINT,
  actor    TEXT NOT NULL DEFAULT '',
  data     TEXT NOT NULL DEFAULT '{}',
  bundle   INTEGER
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Compressing the text of a bundle would cost as much as everything else about writing it.
ALTER TABLE {p}event ALTER COLUMN data SET STORAGE EXTERNAL;

-- History of a job: its events that are not in a bundle.
CREATE INDEX event_for_story ON {p}event (job_id) WHERE job_id IS NOT NULL;
-- History of a job: the bundles written at the times at which the job changed.
CREATE INDEX event_for_bundles ON {p}event (at) WHERE bundle IS NOT NULL;
-- History of a batch: events of the batch itself, without those of its members.
CREATE INDEX event_for_batch ON {p}event (batch_id)
  WHERE batch_id IS NOT NULL AND job_id IS NULL;
-- Audit: actions of people, newest first. The condition equals that of by_people.part.sql.
CREATE INDEX event_for_audit ON {p}event (id)
  WHERE actor NOT IN ('', 'alert', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep')
    AND type <> 'job.stale_refused';

-- Events are append-only; retention may delete them.
CREATE FUNCTION {p}refuse_event_update() RETURNS trigger LANGUAGE plpgsql
  AS $$
BEGIN
  RAISE EXCEPTION 'events are never changed'
  USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON {p}event
  FOR EACH STATEMENT EXECUTE FUNCTION {p}refuse_event_update();

-- A reader of the log must not pass an event that is not committed yet, and ids can commit out of
-- order. Before a transaction draws its first event id, mark_events takes a shared advisory lock
-- whose key is event_lock_base() plus the last id drawn so far (0 if none was). All ids of the
-- transaction are above it, so readers stop below the lowest such lock (event_floor.postgres.sql).
-- One lock per transaction is enough; a transaction-local setting remembers it.
CREATE FUNCTION {p}event_lock_base() RETURNS BIGINT LANGUAGE sql IMMUTABLE
  AS $$ SELECT (CAST(hashtext('{p}') AS BIGINT) & 32767) << 48 $$;
CREATE FUNCTION {p}mark_events() RETURNS BIGINT LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  setting CONSTANT TEXT := 'mulligan.mark_' || {p}event_lock_base();
  mark TEXT := current_setting(setting, true);
BEGIN
  IF mark IS NULL OR mark = '' THEN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO mark FROM {p}event_id_seq;
    PERFORM pg_advisory_xact_lock_shared({p}event_lock_base() + CAST(mark AS BIGINT)),
            set_config(setting, mark, true);
  END IF;
  RETURN CAST(mark AS BIGINT);
END $$;

-- The line of one job in the text of a bundle: a JSON array of id, batch, owner, attempt and token.
CREATE FUNCTION {p}bundle_line(
  job_id TEXT, batch_id TEXT, owner TEXT, attempt BIGINT, token BIGINT
) RETURNS TEXT LANGUAGE sql STABLE AS $$
SELECT '["' || job_id || '",'
  || CASE WHEN batch_id IS NULL THEN 'null' ELSE CAST(to_json(batch_id) AS TEXT) END || ','
  || CASE owner WHEN '' THEN '""' ELSE CAST(to_json(owner) AS TEXT) END || ','
  || CASE WHEN token IS NULL THEN 'null,null]' ELSE attempt || ',' || token || ']' END $$;

-- Write events of several types or times, as bundles where possible. One array per column.
-- Transactions draw ids concurrently, so a bundle ends where its ids are no longer consecutive.
CREATE FUNCTION {p}write_mixed_events(
  ats BIGINT[], types TEXT[], jobs TEXT[], batches TEXT[], owners TEXT[], attempts BIGINT[],
  tokens BIGINT[], texts TEXT[]
) RETURNS INTEGER LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF ats IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM {p}mark_events();
  INSERT INTO {p}event (id, at, type, job_id, batch_id, owner, attempt, token, data, bundle)
  SELECT max(id), at, type,
         CASE count(*) WHEN 1 THEN min(job_id) END, CASE count(*) WHEN 1 THEN min(batch_id) END,
         CASE count(*) WHEN 1 THEN min(owner) ELSE '' END,
         CASE count(*) WHEN 1 THEN min(attempt) END, CASE count(*) WHEN 1 THEN min(token) END,
         CASE WHEN count(*) = 1 THEN min(data)
              WHEN min(data COLLATE "C") = max(data COLLATE "C")
              THEN min(data) || E'\n' || string_agg(line, E'\n' ORDER BY id)
              ELSE string_agg(data || E'\n' || line, E'\n' ORDER BY id) END,
         NULLIF(count(*), 1)
  FROM (
    SELECT *, {p}bundle_line(job_id, batch_id, owner, attempt, token) AS line,
           id - row_number() OVER same_event AS id_run,
           (row_number() OVER same_event - 1) / 1000 AS chunk
    FROM (
      SELECT nextval('{p}event_id_seq') AS id, input.*
      FROM unnest(ats, types, jobs, batches, owners, attempts, tokens, texts)
           AS input(at, type, job_id, batch_id, owner, attempt, token, data)
    ) AS numbered WINDOW same_event AS (PARTITION BY type, at ORDER BY id)
  ) AS described
  GROUP BY type, at, id_run, chunk;
  RETURN cardinality(ats);
END $$;

-- The text of a bundle. The usual cases are built by array functions, at a third of the cost of
-- one row per job; the text is the same in every case.
CREATE FUNCTION {p}bundle_text(
  jobs TEXT[], batches TEXT[], owners TEXT[], attempts BIGINT[], tokens BIGINT[], texts TEXT[]
) RETURNS TEXT LANGUAGE plpgsql STABLE AS $$
DECLARE
  same_data CONSTANT BOOLEAN := texts[1] = ALL (texts);
  tail TEXT;
BEGIN
  IF num_nonnulls(VARIADIC batches) = 0 AND '' = ALL (owners) THEN
    IF num_nonnulls(VARIADIC tokens) = 0 THEN
      tail := '",null,"",null,null]';
    ELSIF attempts[1] = ALL (attempts) AND tokens[1] = ALL (tokens) THEN
      tail := '",null,"",' || attempts[1] || ',' || tokens[1] || ']';
    END IF;
  END IF;
  IF tail IS NULL THEN
    RETURN (
      SELECT CASE WHEN same_data THEN texts[1] || E'\n' || string_agg(line, E'\n')
                  ELSE string_agg(data || E'\n' || line, E'\n') END
      FROM (
        SELECT data, {p}bundle_line(job_id, batch_id, owner, attempt, token) AS line
        FROM unnest(jobs, batches, owners, attempts, tokens, texts)
             AS item(job_id, batch_id, owner, attempt, token, data)
      ) AS lines
    );
  END IF;
  IF same_data THEN
    RETURN texts[1] || E'\n["' || array_to_string(jobs, tail || E'\n["') || tail;
  END IF;
  RETURN (
    SELECT string_agg(data || E'\n["' || job_id || tail, E'\n')
    FROM unnest(texts, jobs) AS item(data, job_id)
  );
END $$;

-- Write events given as one array per column. Usually all have one type and time: those are
-- bundled here without sorting, everything else by write_mixed_events.
CREATE FUNCTION {p}write_events(
  ats BIGINT[], types TEXT[], jobs TEXT[], batches TEXT[], owners TEXT[], attempts BIGINT[],
  tokens BIGINT[], texts TEXT[]
) RETURNS INTEGER LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  total CONSTANT INTEGER := cardinality(ats);
  ids BIGINT[];
  lo INTEGER := 1;
  hi INTEGER;
BEGIN
  IF ats IS NULL THEN
    RETURN 0;
  END IF;
  IF ats[1] <> ANY (ats) OR types[1] <> ANY (types) THEN
    RETURN {p}write_mixed_events(ats, types, jobs, batches, owners, attempts, tokens, texts);
  END IF;
  PERFORM {p}mark_events();
  ids := ARRAY(SELECT nextval('{p}event_id_seq') FROM generate_series(1, total));
  WHILE lo <= total LOOP
    hi := least(lo + 999, total);
    -- Another transaction drew an id in between: the bundle ends before it.
    IF ids[hi] - ids[lo] <> hi - lo THEN
      hi := (
        SELECT min(k) FROM generate_series(lo, hi) AS k
        WHERE ids[k + 1] IS DISTINCT FROM ids[k] + 1
      );
    END IF;
    IF lo = hi THEN
      INSERT INTO {p}event (id, at, type, job_id, batch_id, owner, attempt, token, data)
      VALUES (ids[lo], ats[lo], types[lo], jobs[lo], batches[lo], owners[lo], attempts[lo],
              tokens[lo], texts[lo]);
    ELSE
      INSERT INTO {p}event (id, at, type, owner, data, bundle)
      VALUES (ids[hi], ats[lo], types[lo], '',
              {p}bundle_text(jobs[lo:hi], batches[lo:hi], owners[lo:hi], attempts[lo:hi], tokens[lo:hi],
                         texts[lo:hi]),
              hi - lo + 1);
    END IF;
    lo := hi + 1;
  END LOOP;
  RETURN total;
END $$;


-- pruned: how many jobs of a kind, state, owner and code retention has removed, and their id range.
CREATE TABLE {p}pruned (
  id       BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  at       BIGINT NOT NULL,
  kind     TEXT COLLATE "C" NOT NULL,
  state    TEXT NOT NULL,
  owner    TEXT NOT NULL,
  code     TEXT NOT NULL,
  count    BIGINT NOT NULL,
  first_id TEXT NOT NULL,
  last_id  TEXT NOT NULL
);


-- worker: one row per worker process; renewing the row renews the leases of all its jobs.
--
-- lease                   how long a renewal is valid
-- renewed_mono            CLOCK_MONOTONIC of the host's boot `boot_id` at the last renewal
-- lock_path, _dev, _ino   the file that the worker keeps locked while it is alive
-- drain_reason            reason of a request to finish its jobs and exit, else NULL
-- renewing                how long the last renewals came without a gap, by the worker's monotonic clock
-- memory                  resident bytes of the worker and its runners at the last renewal
CREATE TABLE {p}worker (
  id           TEXT COLLATE "C" PRIMARY KEY,
  host         TEXT NOT NULL,
  pid          INTEGER NOT NULL,
  boot_id      TEXT NOT NULL,
  lease        BIGINT NOT NULL,
  started_at   BIGINT NOT NULL,
  renewed_at   BIGINT NOT NULL,
  renewed_mono BIGINT NOT NULL,
  closed_at    BIGINT,
  close_reason TEXT NOT NULL DEFAULT '',
  lock_path    TEXT NOT NULL DEFAULT '',
  lock_dev     BIGINT NOT NULL DEFAULT 0,
  lock_ino     BIGINT NOT NULL DEFAULT 0,
  kinds        TEXT NOT NULL DEFAULT '[]',
  queues       TEXT NOT NULL DEFAULT '[]',
  concurrency  INTEGER NOT NULL DEFAULT 1,
  release      TEXT NOT NULL DEFAULT '',
  draining     BOOLEAN NOT NULL DEFAULT false,
  drain_reason TEXT,
  renewing     BIGINT NOT NULL DEFAULT 0,
  memory       BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- Sweep: list the open workers. Not by renewed_at: then every renewal would write index entries.
CREATE INDEX worker_for_sweep ON {p}worker (id) WHERE closed_at IS NULL;


-- hook: errors of the app's hooks (@app.around, @app.on_failure), which change no outcome of a job.
CREATE TABLE {p}hook (
  name   TEXT COLLATE "C" PRIMARY KEY,
  faults BIGINT NOT NULL,
  error  TEXT NOT NULL,
  at     BIGINT NOT NULL,
  worker TEXT NOT NULL
);


-- manifest: apps as data (JSON): kinds, policies, rules, dependencies, schedules, release.
-- The body is last, so that SQLite reads the other columns without it.
CREATE TABLE {p}manifest (
  id           TEXT COLLATE "C" PRIMARY KEY,
  app          TEXT NOT NULL,
  release      TEXT NOT NULL,
  created_at   BIGINT NOT NULL,
  last_used_at BIGINT NOT NULL,
  body         TEXT NOT NULL
);


-- release: the releases of workers, in the order in which they were first seen.
CREATE TABLE {p}release (
  name     TEXT COLLATE "C" PRIMARY KEY,
  first_at BIGINT NOT NULL,
  last_at  BIGINT NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);


-- release_kind: attempts of each kind by release. Every worker adds its counts once a second.
--
-- attempts, deaths        attempts that ended after the handler was called; jobs that died in one
-- starts, failures        jobs whose first attempt succeeded or failed; those that failed
-- base_...                the sums of all other releases when this one first counted the kind
-- claimed                 jobs that workers with --canary have claimed
CREATE TABLE {p}release_kind (
  release       TEXT COLLATE "C" NOT NULL,
  kind          TEXT COLLATE "C" NOT NULL,
  first_at      BIGINT NOT NULL,
  last_at       BIGINT NOT NULL,
  attempts      BIGINT NOT NULL,
  deaths        BIGINT NOT NULL,
  starts        BIGINT NOT NULL,
  failures      BIGINT NOT NULL,
  base_attempts BIGINT NOT NULL,
  base_starts   BIGINT NOT NULL,
  base_failures BIGINT NOT NULL,
  claimed       BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, release)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);


-- gate: closed queues, kinds and dependencies, and kinds that a release must not run (its key is
-- "release|kind"). probe_at: when the breaker probes a dependency next.
CREATE TABLE {p}gate (
  scope    TEXT NOT NULL CHECK (scope IN ('queue', 'kind', 'dependency', 'release')),
  key      TEXT NOT NULL,
  since    BIGINT NOT NULL,
  until    BIGINT,
  reason   TEXT NOT NULL DEFAULT '',
  actor    TEXT NOT NULL DEFAULT '',
  probe_at BIGINT,
  PRIMARY KEY (scope, key)
);


-- limits: concurrency and rate limits that operators set for queues and dependencies.
CREATE TABLE {p}limits (
  scope       TEXT COLLATE "C" NOT NULL CHECK (scope IN ('queue', 'dependency')),
  key         TEXT COLLATE "C" NOT NULL,
  concurrency BIGINT,
  rate        DOUBLE PRECISION,
  since       BIGINT NOT NULL,
  until       BIGINT,
  reason      TEXT NOT NULL DEFAULT '',
  actor       TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (scope, key)
);


-- meter: token buckets of rate limits; a claim under a limit locks its row.
CREATE TABLE {p}meter (
  scope  TEXT COLLATE "C" NOT NULL,
  key    TEXT COLLATE "C" NOT NULL,
  tokens DOUBLE PRECISION NOT NULL,
  at     BIGINT NOT NULL,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);


-- guard: state (JSON) of the circuit breaker, ramp and retry budget of a dependency or kind.
CREATE TABLE {p}guard (
  scope      TEXT COLLATE "C" NOT NULL CHECK (scope IN ('dependency', 'kind')),
  key        TEXT COLLATE "C" NOT NULL,
  version    BIGINT NOT NULL,
  active     BOOLEAN NOT NULL,
  updated_at BIGINT NOT NULL,
  body       TEXT NOT NULL,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- Claim: read the guards that restrict claims; a healthy fleet has none.
CREATE INDEX guard_for_claim ON {p}guard (key) WHERE active;


-- tally: outcomes (JSON) to be added to a guard that another worker had locked when they happened.
CREATE TABLE {p}tally (
  id    BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  scope TEXT COLLATE "C" NOT NULL,
  key   TEXT COLLATE "C" NOT NULL,
  body  TEXT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Guard update: take the tallies of one guard in the order in which they were written.
CREATE INDEX tally_for_fold ON {p}tally (scope, key, id);


-- failure_group: failure groups that people muted or resolved; scope is one owner, or '*' for all.
--
-- in_release              the release that has the fix, or 'next'; empty: every one
-- regressed_at            when a job died although the cause was resolved
CREATE TABLE {p}failure_group (
  fingerprint TEXT COLLATE "C" NOT NULL,
  scope       TEXT COLLATE "C" NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('open', 'muted', 'resolved')),
  until       BIGINT,
  note        TEXT NOT NULL DEFAULT '',
  actor       TEXT NOT NULL DEFAULT '',
  at          BIGINT NOT NULL,
  resolved_at BIGINT,
  in_release   TEXT NOT NULL DEFAULT '',
  regressed_at BIGINT,
  assignee     TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (fingerprint, scope)
);


-- cause: failure groups since their first death, kept longer than their dead jobs.
--
-- exception, location      the error as operators see it: "KeyError: 'AT'", "shop.py:18"
-- deaths, hours           all deaths; those of the last 14 days as JSON, by hours since 1970
-- kinds                   JSON: deaths by kind
-- sample                  JSON: the last death, with the private part of its failure
-- releases                JSON: first and last death and number of deaths by release
CREATE TABLE {p}cause (
  fingerprint TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  code        TEXT NOT NULL,
  cls         TEXT NOT NULL,
  exception   TEXT NOT NULL,
  location    TEXT NOT NULL,
  first_at    BIGINT NOT NULL,
  last_at     BIGINT NOT NULL,
  deaths      BIGINT NOT NULL,
  hours       TEXT NOT NULL,
  kinds       TEXT NOT NULL,
  sample      TEXT NOT NULL,
  releases    TEXT NOT NULL DEFAULT '{}'
);

-- Failure groups: list the causes that jobs died of lately, also those without a dead job.
CREATE INDEX cause_for_list ON {p}cause (last_at);


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
  unique_hash   TEXT COLLATE "C",
  created_at    BIGINT NOT NULL,
  sealed_at     BIGINT,
  cancelled_at  BIGINT,
  cancel_reason TEXT,
  parent_id     TEXT COLLATE "C",  -- the job that waits for the members
  parent_step   TEXT,  -- the name of its wait
  CONSTRAINT batch_cancelled CHECK (cancelled_at IS NULL OR sealed_at IS NOT NULL)
);

-- Creation of a batch: at most one batch holds a unique key.
CREATE UNIQUE INDEX batch_for_unique ON {p}batch (unique_hash) WHERE unique_hash IS NOT NULL;

-- Batches of child jobs: the page of their parent, and the sweep after its end.
CREATE INDEX batch_for_parent ON {p}batch (parent_id) WHERE parent_id IS NOT NULL;


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
  outcome_at           BIGINT,
  previous             TEXT,
  sealed_event_written BOOLEAN NOT NULL DEFAULT false,
  expires_at           BIGINT,
  expired_at           BIGINT,
  being_pruned         BOOLEAN NOT NULL DEFAULT false,
  CONSTRAINT batch_outcome    CHECK (outcome IN ('ready', 'partial', 'failed')),
  CONSTRAINT batch_outcome_at CHECK ((outcome IS NULL) = (outcome_at IS NULL)),
  CONSTRAINT batch_previous   CHECK (previous IS NULL OR previous IN ('ready', 'partial', 'failed')
                                     AND generation > 1),
  CONSTRAINT batch_generation CHECK (generation >= 1),
  CONSTRAINT batch_expired    CHECK (expired_at IS NULL
                                     OR (outcome IS NOT NULL AND expires_at IS NOT NULL)),
  CONSTRAINT batch_being_pruned CHECK (NOT being_pruned OR outcome IS NOT NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- Upkeep: find batches without an outcome whose members have all ended.
CREATE INDEX batch_for_sweep ON {p}batch_progress (id) WHERE outcome IS NULL;
-- Upkeep: find batches whose time to expire has come.
CREATE INDEX batch_for_expiry ON {p}batch_progress (expires_at)
  WHERE expires_at IS NOT NULL AND expired_at IS NULL;
-- Retention: find batches that completed long ago.
CREATE INDEX batch_for_retention ON {p}batch_progress (outcome_at) WHERE outcome_at IS NOT NULL;


-- schedule: cron schedules; every slot up to `cursor` has a job or was skipped with an event.
--
-- declared_at             when a manifest in use last declared the schedule, to the day
CREATE TABLE {p}schedule (
  name         TEXT COLLATE "C" PRIMARY KEY,
  cron         TEXT NOT NULL,
  timezone     TEXT NOT NULL,
  cursor       BIGINT NOT NULL,
  declared_at  BIGINT NOT NULL,
  paused_at    BIGINT,
  paused_until BIGINT,
  pause_reason TEXT NOT NULL DEFAULT '',
  paused_by    TEXT NOT NULL DEFAULT ''
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);


-- slot: the job of each slot of a schedule; the primary key lets only one worker create it.
CREATE TABLE {p}slot (
  schedule TEXT COLLATE "C" NOT NULL,
  slot     BIGINT NOT NULL,
  job_id   TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (schedule, slot)
);

-- Retention: find slots that are old enough.
CREATE INDEX slot_for_retention ON {p}slot (slot);


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
  id          TEXT COLLATE "C" PRIMARY KEY,
  action      TEXT NOT NULL CHECK (action IN ('retry', 'cancel', 'discard', 'release', 'move')),
  filter      TEXT NOT NULL,
  fixed       TEXT NOT NULL,
  params      TEXT NOT NULL DEFAULT '{}',
  steps       TEXT NOT NULL,
  rate        DOUBLE PRECISION NOT NULL CHECK (rate > 0),
  stop_if     DOUBLE PRECISION NOT NULL CHECK (stop_if BETWEEN 0 AND 1),
  scope       TEXT COLLATE "C" NOT NULL,
  actor       TEXT NOT NULL DEFAULT '',
  reason      TEXT NOT NULL DEFAULT '',
  key         TEXT COLLATE "C",
  digest      TEXT COLLATE "C" NOT NULL,
  state       TEXT NOT NULL
    CHECK (state IN ('gathering', 'running', 'paused', 'stopped', 'aborted', 'finished')),
  step        BIGINT NOT NULL DEFAULT 0,
  total       BIGINT NOT NULL DEFAULT 0,
  tallies     TEXT NOT NULL DEFAULT '[]',
  recent      TEXT NOT NULL DEFAULT '',
  tokens      DOUBLE PRECISION NOT NULL DEFAULT 0,
  tokens_at   BIGINT NOT NULL DEFAULT 0,
  version     BIGINT NOT NULL DEFAULT 1,
  active      BOOLEAN NOT NULL DEFAULT true,
  due_at      BIGINT NOT NULL,
  moved_at    BIGINT NOT NULL,
  created_at  BIGINT NOT NULL,
  started_at  BIGINT,
  finished_at BIGINT,
  note        TEXT NOT NULL DEFAULT '',
  CHECK ((state IN ('stopped', 'aborted', 'finished')) = (finished_at IS NOT NULL))
);

-- Worker: find operations that are due to continue.
CREATE INDEX operation_for_turn ON {p}operation (due_at) WHERE active;
-- Start of an operation: at most one has an idempotency key.
CREATE UNIQUE INDEX operation_for_key ON {p}operation (scope, key) WHERE key IS NOT NULL;
-- Start of an operation: at most one unfinished operation has the same content.
CREATE UNIQUE INDEX operation_for_twin ON {p}operation (digest)
  WHERE state IN ('gathering', 'running', 'paused');
-- Retention: find operations that finished long ago.
CREATE INDEX operation_for_retention ON {p}operation (finished_at) WHERE NOT active;


-- operation_item: one row per job of an operation: how it was at the start, and what became of it.
--
-- place                   position within the operation, from 1, in order of job ids
-- initial_state           state of the job when the operation started
-- cause, code             its failure group and code at that time
CREATE TABLE {p}operation_item (
  operation     TEXT COLLATE "C" NOT NULL,
  place         BIGINT NOT NULL,
  job_id        TEXT COLLATE "C" NOT NULL,
  generation    BIGINT NOT NULL,
  initial_state TEXT NOT NULL,
  cause         TEXT COLLATE "C",
  code          TEXT COLLATE "C",
  state         TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'ended')),
  outcome       TEXT CHECK (outcome IN ('recovered', 'same', 'other', 'done', 'refused', 'skipped')),
  message       TEXT NOT NULL DEFAULT '',
  ended_at      BIGINT,
  PRIMARY KEY (operation, place),
  CHECK ((state = 'ended') = (outcome IS NOT NULL) AND (state = 'ended') = (ended_at IS NOT NULL))
);

-- Preview: test whether a job belongs to an operation. Unique: a job is an item once.
CREATE UNIQUE INDEX operation_item_for_job ON {p}operation_item (operation, job_id);
-- Worker: read the next items to act on.
CREATE INDEX operation_item_for_sending ON {p}operation_item (operation, place)
  WHERE state = 'waiting';
-- Worker: read the items whose jobs were retried and may have ended.
CREATE INDEX operation_item_for_ends ON {p}operation_item (operation, place)
  WHERE state = 'sent';


-- reader: how far each consumer has read the event log; a consumer locks its row while it reads.
CREATE TABLE {p}reader (
  name       TEXT COLLATE "C" PRIMARY KEY,
  cursor     BIGINT NOT NULL,
  body       TEXT NOT NULL DEFAULT '',
  updated_at BIGINT NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);


-- subscription: which events are sent where. If `declared`, the manifest holds the definition.
--
-- patterns                event types, separated by commas
-- form                    one message per event, or one per incident
-- body                    JSON of the channel's configuration, with its secrets
-- endpoint                the dependency that deliveries use
-- after                   only events with a higher id are sent
CREATE TABLE {p}subscription (
  id            TEXT COLLATE "C" PRIMARY KEY,
  declared      BOOLEAN NOT NULL,
  name          TEXT NOT NULL DEFAULT '',
  patterns      TEXT NOT NULL DEFAULT '',
  owner         TEXT COLLATE "C",
  batch_id      TEXT COLLATE "C",
  filter        TEXT NOT NULL DEFAULT '',
  form          TEXT NOT NULL CHECK (form IN ('each', 'incident')),
  channel       TEXT NOT NULL DEFAULT '',
  body          TEXT NOT NULL DEFAULT '{}',
  endpoint      TEXT COLLATE "C" NOT NULL DEFAULT '',
  after         BIGINT NOT NULL,
  state         TEXT NOT NULL DEFAULT 'on' CHECK (state IN ('on', 'off')),
  reason        TEXT NOT NULL DEFAULT '',
  version       BIGINT NOT NULL DEFAULT 1,
  failures      BIGINT NOT NULL DEFAULT 0,
  failing_since BIGINT,
  created_at    BIGINT NOT NULL,
  created_by    TEXT NOT NULL DEFAULT ''
);

-- Retention: find subscriptions of batches that were removed.
CREATE INDEX subscription_for_batch ON {p}subscription (batch_id) WHERE batch_id IS NOT NULL;


-- incident: failures with one cause that a subscription reports to an owner as one growing message.
--
-- key                     a failure group or a batch
-- batch_id                the batch of its jobs, if each batch has its own incident
-- due_at                  when the dispatcher looks at the incident next
CREATE TABLE {p}incident (
  id           TEXT COLLATE "C" PRIMARY KEY,
  subscription TEXT COLLATE "C" NOT NULL,
  owner        TEXT COLLATE "C" NOT NULL,
  key          TEXT COLLATE "C" NOT NULL,
  batch_id     TEXT COLLATE "C" NOT NULL DEFAULT '',
  body         TEXT NOT NULL,
  due_at       BIGINT NOT NULL,
  opened_at    BIGINT NOT NULL,
  closed_at    BIGINT
);

-- Dispatcher: find the open incident that an event belongs to. Unique: there is at most one.
CREATE UNIQUE INDEX incident_for_fold ON {p}incident (key, subscription, owner, batch_id)
  WHERE closed_at IS NULL;
-- Dispatcher: find the open incidents that the end of a batch closes.
CREATE INDEX incident_for_batch ON {p}incident (batch_id) WHERE closed_at IS NULL AND batch_id <> '';
-- Dispatcher: find open incidents that are due.
CREATE INDEX incident_for_turn ON {p}incident (due_at) WHERE closed_at IS NULL;
-- Retention: find incidents that were closed long ago.
CREATE INDEX incident_for_retention ON {p}incident (closed_at) WHERE closed_at IS NOT NULL;


-- notified: messages that a subscription sent to an owner, and withheld, in the hour from `since`.
CREATE TABLE {p}notified (
  subscription TEXT COLLATE "C" NOT NULL,
  owner        TEXT COLLATE "C" NOT NULL,
  since        BIGINT NOT NULL,
  sent         BIGINT NOT NULL,
  withheld     BIGINT NOT NULL,
  PRIMARY KEY (subscription, owner)
);


-- alert: the state of each alert rule for each key; key '*' is a silence of the whole rule.
--
-- evaluated_at            when the rule was last evaluated for this key
-- acted                   JSON of the alert's action that is still in force, or empty
CREATE TABLE {p}alert (
  rule         TEXT COLLATE "C" NOT NULL,
  key          TEXT COLLATE "C" NOT NULL,
  state        TEXT NOT NULL CHECK (state IN ('pending', 'firing', 'resolved', 'silenced')),
  since        BIGINT NOT NULL,
  evaluated_at BIGINT NOT NULL,
  value        DOUBLE PRECISION NOT NULL,
  evidence     TEXT NOT NULL,
  acted        TEXT NOT NULL DEFAULT '',
  until        BIGINT,
  actor        TEXT NOT NULL DEFAULT '',
  reason       TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (rule, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);


-- stat: counters per minute, after a day per hour; minute 0 holds the totals, which only grow.
CREATE TABLE {p}stat (
  minute BIGINT NOT NULL,
  name   TEXT COLLATE "C" NOT NULL,
  labels TEXT COLLATE "C" NOT NULL,
  n      BIGINT NOT NULL,
  total  DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (minute, name, labels)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);


-- api_key: keys for the HTTP API, stored as hashes; scope is one owner, or '*' for all.
CREATE TABLE {p}api_key (
  id           TEXT COLLATE "C" PRIMARY KEY,
  hash         TEXT NOT NULL,
  name         TEXT NOT NULL DEFAULT '',
  scope        TEXT NOT NULL CHECK (scope <> ''),
  role         TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at   BIGINT NOT NULL,
  created_by   TEXT NOT NULL DEFAULT '',
  expires_at   BIGINT,
  last_used_at BIGINT,
  revoked_at   BIGINT
);


-- answer: responses to HTTP requests with an Idempotency-Key.
--
-- at                      of the response, or of the last renewal of its claim
-- claim                   of the request that runs; NULL if it stored its answer in one transaction
-- status                  NULL until there is a response
CREATE TABLE {p}answer (
  key_id  TEXT COLLATE "C" NOT NULL,
  name    TEXT COLLATE "C" NOT NULL,
  request TEXT NOT NULL,
  at      BIGINT NOT NULL,
  claim   TEXT COLLATE "C",
  status  INTEGER,
  body    TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (key_id, name)
);

-- Retention: find responses that are old enough.
CREATE INDEX answer_for_retention ON {p}answer (at);
-- Requests that run: find their claims.
CREATE INDEX answer_for_claims ON {p}answer (claim) WHERE status IS NULL;


-- session: dashboard sessions, and sign-in links that work once (is_link), stored as hashes.
CREATE TABLE {p}session (
  hash       TEXT COLLATE "C" PRIMARY KEY,
  is_link    BOOLEAN NOT NULL,
  key_id     TEXT,
  scope      TEXT NOT NULL CHECK (scope <> ''),
  role       TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL
);

-- Retention: find expired sessions and links.
CREATE INDEX session_for_retention ON {p}session (expires_at);
