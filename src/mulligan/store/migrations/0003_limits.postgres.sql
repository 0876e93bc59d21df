-- What operators set, and how much of each rate is used up. Both tables stay small: one row per limited thing.
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

CREATE TABLE {p}meter (
  scope  TEXT COLLATE "C" NOT NULL,
  key    TEXT COLLATE "C" NOT NULL,
  tokens DOUBLE PRECISION NOT NULL,
  at     BIGINT NOT NULL,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 50);
