-- Who is told of what, how far the log has been read for them, and what is being told as one thing that grows.
CREATE TABLE {p}reader (
  name       TEXT COLLATE "C" PRIMARY KEY,
  cursor     BIGINT NOT NULL,
  body       TEXT NOT NULL DEFAULT '',
  updated_at BIGINT NOT NULL
);

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
CREATE INDEX subscription_for_batch ON {p}subscription (batch_id) WHERE batch_id IS NOT NULL;

CREATE TABLE {p}incident (
  id           TEXT COLLATE "C" PRIMARY KEY,
  subscription TEXT COLLATE "C" NOT NULL,
  owner        TEXT COLLATE "C" NOT NULL,
  key          TEXT COLLATE "C" NOT NULL,
  body         TEXT NOT NULL,
  due_at       BIGINT NOT NULL,
  opened_at    BIGINT NOT NULL,
  closed_at    BIGINT
);
CREATE UNIQUE INDEX incident_for_fold ON {p}incident (key, subscription, owner) WHERE closed_at IS NULL;
CREATE INDEX incident_for_turn ON {p}incident (due_at) WHERE closed_at IS NULL;
CREATE INDEX incident_for_retention ON {p}incident (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE {p}notified (
  subscription TEXT COLLATE "C" NOT NULL,
  owner        TEXT COLLATE "C" NOT NULL,
  since        BIGINT NOT NULL,
  sent         BIGINT NOT NULL,
  withheld     BIGINT NOT NULL,
  PRIMARY KEY (subscription, owner)
);
