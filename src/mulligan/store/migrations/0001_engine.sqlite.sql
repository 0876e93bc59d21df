-- The engine's memory. Times are integer microseconds UTC. Nothing here is newer than SQLite 3.37.

CREATE TABLE {p}meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE {p}job (
  id               TEXT PRIMARY KEY,
  kind             TEXT NOT NULL,
  queue            TEXT NOT NULL,
  owner            TEXT NOT NULL DEFAULT '',
  state            TEXT NOT NULL DEFAULT 'queued',
  priority         INTEGER NOT NULL DEFAULT 0,
  lane             TEXT NOT NULL,
  uses             TEXT NOT NULL DEFAULT '',
  run_at           INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  started_at       INTEGER,
  first_started_at INTEGER,
  finished_at      INTEGER,
  deadline_at      INTEGER,
  deadline_span    INTEGER,
  worker           TEXT,
  token            INTEGER NOT NULL DEFAULT 0,
  generation       INTEGER NOT NULL DEFAULT 1,
  attempt          INTEGER NOT NULL DEFAULT 0,
  failures         INTEGER NOT NULL DEFAULT 0,
  losses           INTEGER NOT NULL DEFAULT 0,
  snoozes          INTEGER NOT NULL DEFAULT 0,
  alone            INTEGER NOT NULL DEFAULT 0,
  announced        INTEGER NOT NULL DEFAULT 0,
  max_retries      INTEGER,
  policy           TEXT,
  timeout          INTEGER,
  unique_key       TEXT,
  unique_hash      TEXT,
  unique_cover     TEXT,
  unique_until     INTEGER,
  batch_id         TEXT,
  cancel_reason    TEXT,
  choice           TEXT,
  choices          TEXT,
  reason           TEXT NOT NULL DEFAULT '',
  progress         REAL,
  progress_message TEXT NOT NULL DEFAULT '',
  cost             REAL NOT NULL DEFAULT 0,
  error            TEXT,
  payload          TEXT NOT NULL,
  result           TEXT,
  CONSTRAINT job_state     CHECK (state IN ('queued', 'running', 'succeeded', 'dead', 'cancelled', 'parked')),
  CONSTRAINT job_lease     CHECK ((state = 'running') = (worker IS NOT NULL)),
  CONSTRAINT job_result    CHECK (result IS NULL OR state = 'succeeded'),
  CONSTRAINT job_error     CHECK ((state = 'dead') = (error IS NOT NULL)),
  CONSTRAINT job_finished  CHECK ((state IN ('succeeded', 'dead', 'cancelled')) = (finished_at IS NOT NULL)),
  CONSTRAINT job_choices   CHECK (choices IS NULL OR state = 'parked'),
  CONSTRAINT job_priority  CHECK (priority BETWEEN -9 AND 9),
  CONSTRAINT job_counters  CHECK (generation >= 1 AND attempt BETWEEN 0 AND token
                                  AND failures >= 0 AND losses >= 0 AND snoozes >= 0)
) STRICT;

-- Each index is named for the question it answers.
CREATE INDEX {p}job_for_claim ON {p}job (lane, priority, run_at, id) WHERE state = 'queued';
CREATE INDEX {p}job_for_sweep ON {p}job (worker) WHERE state = 'running';
CREATE UNIQUE INDEX {p}job_for_unique ON {p}job (unique_hash) WHERE unique_hash IS NOT NULL;
CREATE INDEX {p}job_for_deadline ON {p}job (deadline_at) WHERE deadline_at IS NOT NULL AND state IN ('queued', 'parked');
CREATE INDEX {p}job_for_retention ON {p}job (state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX {p}job_for_announcement ON {p}job (id) WHERE NOT announced;

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
  PRIMARY KEY (job_id, token)
) STRICT, WITHOUT ROWID;

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
  data     TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX {p}event_for_story ON {p}event (job_id) WHERE job_id IS NOT NULL;

CREATE TABLE {p}checkpoint (
  job_id TEXT NOT NULL,
  name   TEXT NOT NULL,
  value  TEXT NOT NULL,
  token  INTEGER NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

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
  life_path    TEXT NOT NULL DEFAULT '',
  life_dev     INTEGER NOT NULL DEFAULT 0,
  life_ino     INTEGER NOT NULL DEFAULT 0,
  kinds        TEXT NOT NULL DEFAULT '[]',
  queues       TEXT NOT NULL DEFAULT '[]',
  concurrency  INTEGER NOT NULL DEFAULT 1,
  release      TEXT NOT NULL DEFAULT '',
  draining     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX {p}worker_for_sweep ON {p}worker (renewed_at) WHERE closed_at IS NULL;

CREATE TABLE {p}gate (
  scope  TEXT NOT NULL CHECK (scope IN ('queue', 'kind', 'dependency')),
  key    TEXT NOT NULL,
  since  INTEGER NOT NULL,
  until  INTEGER,
  reason TEXT NOT NULL DEFAULT '',
  actor  TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE {p}manifest (
  id         TEXT PRIMARY KEY,
  app        TEXT NOT NULL,
  release    TEXT NOT NULL,
  body       TEXT NOT NULL,
  first_seen INTEGER NOT NULL,
  last_named INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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
