-- Schedules. Everything up to `cursor` is decided: those slots have a job, or were skipped and that was told.
CREATE TABLE {p}schedule (
  name     TEXT COLLATE "C" PRIMARY KEY,
  cron     TEXT NOT NULL,
  timezone TEXT NOT NULL,
  cursor   BIGINT NOT NULL,
  named_at BIGINT NOT NULL
);

-- One slot, one job: by this key, whoever comes at once.
CREATE TABLE {p}slot (
  schedule TEXT COLLATE "C" NOT NULL,
  slot     BIGINT NOT NULL,
  job_id   TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (schedule, slot)
);
CREATE INDEX slot_for_retention ON {p}slot (slot);
ALTER TABLE {p}schedule SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
