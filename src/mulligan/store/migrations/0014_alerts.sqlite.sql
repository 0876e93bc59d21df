-- How the rules of the alerts stand, by rule and by what it is about. Key '*': what a person has said of the whole rule.
CREATE TABLE {p}alert (
  rule     TEXT NOT NULL,
  key      TEXT NOT NULL,
  state    TEXT NOT NULL CHECK (state IN ('pending', 'firing', 'resolved', 'silenced')),
  since    INTEGER NOT NULL,
  seen_at  INTEGER NOT NULL,
  value    REAL NOT NULL,
  evidence TEXT NOT NULL,
  acted    TEXT NOT NULL DEFAULT '',
  until    INTEGER,
  actor    TEXT NOT NULL DEFAULT '',
  reason   TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (rule, key)
) STRICT, WITHOUT ROWID;

-- What alerts do is no deed of people.
DROP INDEX {p}event_for_audit;
CREATE INDEX {p}event_for_audit ON {p}event (id)
  WHERE actor NOT IN ('', 'alert', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep')
    AND type <> 'job.stale_refused';
