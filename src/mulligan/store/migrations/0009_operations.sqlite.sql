-- Bulk actions: what was wished, how far it is, and one row for each job it is about.
CREATE TABLE {p}operation (
  id          TEXT PRIMARY KEY,
  action      TEXT NOT NULL CHECK (action IN ('retry', 'cancel', 'discard', 'release', 'move')),
  asked       TEXT NOT NULL,
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
  state       TEXT NOT NULL CHECK (state IN ('gathering', 'running', 'paused', 'stopped', 'aborted', 'finished')),
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
CREATE INDEX {p}operation_for_turn ON {p}operation (due_at) WHERE active;
CREATE UNIQUE INDEX {p}operation_for_key ON {p}operation (scope, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX {p}operation_for_twin ON {p}operation (digest) WHERE state IN ('gathering', 'running', 'paused');
CREATE INDEX {p}operation_for_retention ON {p}operation (finished_at) WHERE NOT active;

CREATE TABLE {p}operation_item (
  operation  TEXT NOT NULL,
  place      INTEGER NOT NULL,
  job_id     TEXT NOT NULL,
  generation INTEGER NOT NULL,
  was        TEXT NOT NULL,
  cause      TEXT,
  code       TEXT,
  state      TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'ended')),
  outcome    TEXT CHECK (outcome IN ('recovered', 'same', 'other', 'done', 'refused', 'skipped')),
  why        TEXT NOT NULL DEFAULT '',
  ended_at   INTEGER,
  PRIMARY KEY (operation, place),
  CHECK ((state = 'ended') = (outcome IS NOT NULL) AND (state = 'ended') = (ended_at IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX {p}operation_item_for_job ON {p}operation_item (operation, job_id);
CREATE INDEX {p}operation_item_for_sending ON {p}operation_item (operation, place) WHERE state = 'waiting';
CREATE INDEX {p}operation_item_for_ends ON {p}operation_item (operation, place) WHERE state = 'sent';
