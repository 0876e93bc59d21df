-- Who is told of what, how far the log has been read for them, and what is being told as one thing that grows.
CREATE TABLE {p}reader (
  name       TEXT PRIMARY KEY,
  cursor     INTEGER NOT NULL,
  body       TEXT NOT NULL DEFAULT '',
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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
CREATE INDEX {p}subscription_for_batch ON {p}subscription (batch_id) WHERE batch_id IS NOT NULL;

CREATE TABLE {p}incident (
  id           TEXT PRIMARY KEY,
  subscription TEXT NOT NULL,
  owner        TEXT NOT NULL,
  key          TEXT NOT NULL,
  body         TEXT NOT NULL,
  due_at       INTEGER NOT NULL,
  opened_at    INTEGER NOT NULL,
  closed_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX {p}incident_for_fold ON {p}incident (key, subscription, owner) WHERE closed_at IS NULL;
CREATE INDEX {p}incident_for_turn ON {p}incident (due_at) WHERE closed_at IS NULL;
CREATE INDEX {p}incident_for_retention ON {p}incident (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE {p}notified (
  subscription TEXT NOT NULL,
  owner        TEXT NOT NULL,
  since        INTEGER NOT NULL,
  sent         INTEGER NOT NULL,
  withheld     INTEGER NOT NULL,
  PRIMARY KEY (subscription, owner)
) STRICT, WITHOUT ROWID;
