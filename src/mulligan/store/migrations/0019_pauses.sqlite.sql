-- A schedule that a person has paused: its slots get no job. NULL: it is not.
ALTER TABLE {p}schedule ADD COLUMN paused_at INTEGER;
ALTER TABLE {p}schedule ADD COLUMN paused_until INTEGER;
ALTER TABLE {p}schedule ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE {p}schedule ADD COLUMN paused_by TEXT NOT NULL DEFAULT '';
