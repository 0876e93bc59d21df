-- Schedules. Everything up to `cursor` is decided: those slots have a job, or were skipped and that was told.
CREATE TABLE {p}schedule (
  name     TEXT PRIMARY KEY,
  cron     TEXT NOT NULL,
  timezone TEXT NOT NULL,
  cursor   INTEGER NOT NULL,
  named_at INTEGER NOT NULL
) STRICT;

-- One slot, one job: by this key, whoever comes at once.
CREATE TABLE {p}slot (
  schedule TEXT NOT NULL,
  slot     INTEGER NOT NULL,
  job_id   TEXT NOT NULL,
  PRIMARY KEY (schedule, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX {p}slot_for_retention ON {p}slot (slot);
