-- Bulk actions: what was wished, how far it is, and one row for each job it is about.
CREATE TABLE {p}operation (
  id          TEXT COLLATE "C" PRIMARY KEY,
  action      TEXT NOT NULL CHECK (action IN ('retry', 'cancel', 'discard', 'release', 'move')),
  asked       TEXT NOT NULL,
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
  state       TEXT NOT NULL CHECK (state IN ('gathering', 'running', 'paused', 'stopped', 'aborted', 'finished')),
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
CREATE INDEX operation_for_turn ON {p}operation (due_at) WHERE active;
CREATE UNIQUE INDEX operation_for_key ON {p}operation (scope, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX operation_for_twin ON {p}operation (digest) WHERE state IN ('gathering', 'running', 'paused');
CREATE INDEX operation_for_retention ON {p}operation (finished_at) WHERE NOT active;

CREATE TABLE {p}operation_item (
  operation  TEXT COLLATE "C" NOT NULL,
  place      BIGINT NOT NULL,
  job_id     TEXT COLLATE "C" NOT NULL,
  generation BIGINT NOT NULL,
  was        TEXT NOT NULL,
  cause      TEXT COLLATE "C",
  code       TEXT COLLATE "C",
  state      TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'ended')),
  outcome    TEXT CHECK (outcome IN ('recovered', 'same', 'other', 'done', 'refused', 'skipped')),
  why        TEXT NOT NULL DEFAULT '',
  ended_at   BIGINT,
  PRIMARY KEY (operation, place),
  CHECK ((state = 'ended') = (outcome IS NOT NULL) AND (state = 'ended') = (ended_at IS NOT NULL))
);
CREATE UNIQUE INDEX operation_item_for_job ON {p}operation_item (operation, job_id);
CREATE INDEX operation_item_for_sending ON {p}operation_item (operation, place) WHERE state = 'waiting';
CREATE INDEX operation_item_for_ends ON {p}operation_item (operation, place) WHERE state = 'sent';
