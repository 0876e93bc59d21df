-- What guards remember of dependencies and kinds, and what workers have counted since it was last folded in.
CREATE TABLE {p}guard (
  scope   TEXT NOT NULL CHECK (scope IN ('dependency', 'kind')),
  key     TEXT NOT NULL,
  version INTEGER NOT NULL,
  active  INTEGER NOT NULL,
  seen_at INTEGER NOT NULL,
  body    TEXT NOT NULL,
  PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- Claims ask for these alone: of a healthy fleet there are none.
CREATE INDEX {p}guard_for_claim ON {p}guard (key) WHERE active;

CREATE TABLE {p}tally (
  id    INTEGER PRIMARY KEY,
  scope TEXT NOT NULL,
  key   TEXT NOT NULL,
  body  TEXT NOT NULL
) STRICT;
CREATE INDEX {p}tally_for_fold ON {p}tally (scope, key, id);

ALTER TABLE {p}gate ADD COLUMN probe_at INTEGER;
