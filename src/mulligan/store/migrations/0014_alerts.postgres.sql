-- How the rules of the alerts stand, by rule and by what it is about. Key '*': what a person has said of the whole rule.
CREATE TABLE {p}alert (
  rule     TEXT COLLATE "C" NOT NULL,
  key      TEXT COLLATE "C" NOT NULL,
  state    TEXT NOT NULL CHECK (state IN ('pending', 'firing', 'resolved', 'silenced')),
  since    BIGINT NOT NULL,
  seen_at  BIGINT NOT NULL,
  value    DOUBLE PRECISION NOT NULL,
  evidence TEXT NOT NULL,
  acted    TEXT NOT NULL DEFAULT '',
  until    BIGINT,
  actor    TEXT NOT NULL DEFAULT '',
  reason   TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (rule, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- What alerts do is no deed of people.
DROP INDEX {p}event_for_audit;
CREATE INDEX event_for_audit ON {p}event (id)
  WHERE actor NOT IN ('', 'alert', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep')
    AND type <> 'job.stale_refused';
