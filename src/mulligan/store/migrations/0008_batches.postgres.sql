-- Batches: jobs with a common outcome. Two rows each, because who adds members must not stand in the way of who ends one:
-- the definition is shared by those who add, the progress is held by those whose member has ended. No foreign keys.
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
  CONSTRAINT batch_cancelled CHECK (cancelled_at IS NULL OR sealed_at IS NOT NULL)
);
CREATE UNIQUE INDEX batch_for_unique ON {p}batch (unique_hash) WHERE unique_hash IS NOT NULL;

CREATE TABLE {p}batch_progress (
  id         TEXT PRIMARY KEY,
  generation INTEGER NOT NULL DEFAULT 1,
  outcome    TEXT,
  outcome_at BIGINT,
  previous   TEXT,
  told       BOOLEAN NOT NULL DEFAULT false,
  expires_at BIGINT,
  expired_at BIGINT,
  leaving    BOOLEAN NOT NULL DEFAULT false,
  CONSTRAINT batch_outcome    CHECK (outcome IN ('ready', 'partial', 'failed')),
  CONSTRAINT batch_outcome_at CHECK ((outcome IS NULL) = (outcome_at IS NULL)),
  CONSTRAINT batch_previous   CHECK (previous IS NULL OR previous IN ('ready', 'partial', 'failed') AND generation > 1),
  CONSTRAINT batch_generation CHECK (generation >= 1),
  CONSTRAINT batch_expired    CHECK (expired_at IS NULL OR (outcome IS NOT NULL AND expires_at IS NOT NULL)),
  CONSTRAINT batch_leaving    CHECK (NOT leaving OR outcome IS NOT NULL)
) WITH (fillfactor = 70);
CREATE INDEX batch_for_sweep ON {p}batch_progress (id) WHERE outcome IS NULL;
CREATE INDEX batch_for_expiry ON {p}batch_progress (expires_at) WHERE expires_at IS NOT NULL AND expired_at IS NULL;
CREATE INDEX batch_for_retention ON {p}batch_progress (outcome_at) WHERE outcome_at IS NOT NULL;

ALTER TABLE {p}job ADD COLUMN must_have BOOLEAN NOT NULL DEFAULT false
  CONSTRAINT job_must_have CHECK (NOT must_have OR batch_id IS NOT NULL);
CREATE INDEX job_for_batch ON {p}job (batch_id, state, must_have, id) WHERE batch_id IS NOT NULL;
CREATE INDEX event_for_batch ON {p}event (batch_id) WHERE batch_id IS NOT NULL AND job_id IS NULL;
