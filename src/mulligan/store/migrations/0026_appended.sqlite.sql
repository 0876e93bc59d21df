-- Attempts lie in the order in which they ended, and their key beside them. They lay in the order of their keys: the second
-- attempt of a job went between rows of almost a kilobyte, where there was no room, and each page was written twice.
CREATE TABLE {p}attempt_appended (
  job_id      TEXT NOT NULL,
  token       INTEGER NOT NULL,
  generation  INTEGER NOT NULL,
  attempt     INTEGER NOT NULL,
  worker      TEXT NOT NULL,
  settled_by  TEXT NOT NULL,
  started_at  INTEGER NOT NULL,
  ended_at    INTEGER NOT NULL,
  ended       TEXT NOT NULL,
  verb        TEXT NOT NULL,
  code        TEXT,
  cls         TEXT,
  rule        TEXT,
  public      TEXT,
  evidence    TEXT,
  private     TEXT,
  fingerprint TEXT,
  next_run_at INTEGER,
  reason      TEXT NOT NULL DEFAULT '',
  cost        REAL NOT NULL DEFAULT 0,
  judged      TEXT,
  PRIMARY KEY (job_id, token)
) STRICT;
INSERT INTO {p}attempt_appended
SELECT job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, code, cls, rule, public,
       evidence, private, fingerprint, next_run_at, reason, cost, judged
FROM {p}attempt ORDER BY ended_at;
DROP TABLE {p}attempt;
ALTER TABLE {p}attempt_appended RENAME TO {p}attempt;
CREATE INDEX {p}attempt_for_recovery ON {p}attempt (fingerprint, job_id, generation) WHERE verb = 'die';
