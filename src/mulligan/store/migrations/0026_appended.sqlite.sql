-- Attempts lie in the order in which they ended, and their key beside them. They lay in the order of their keys: the second
-- attempt of a job went between rows of almost a kilobyte, where there was no room, and each page was written twice.
ALTER TABLE {p}attempt RENAME TO {p}attempt_by_key;
DROP INDEX {p}attempt_for_recovery;
CREATE TABLE {p}attempt (
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
INSERT INTO {p}attempt
SELECT job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, code, cls, rule, public,
       evidence, private, fingerprint, next_run_at, reason, cost, judged
FROM {p}attempt_by_key ORDER BY ended_at;
DROP TABLE {p}attempt_by_key;
CREATE INDEX {p}attempt_for_recovery ON {p}attempt (fingerprint, job_id, generation) WHERE verb = 'die';
