-- What operators set, and how much of each rate is used up. Both tables stay small: one row per limited thing.
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

CREATE TABLE {p}meter (
  scope  TEXT NOT NULL,
  key    TEXT NOT NULL,
  tokens REAL NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
