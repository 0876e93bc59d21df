-- Statements about schedules and their slots.
-- The macros are explained in storage/statements.py.

-- name: list_schedules
-- List all schedules.
SELECT {ScheduleRow} FROM {p}schedule ORDER BY name

-- name: declare_schedule
-- Insert a schedule. The cursor starts at the present: no earlier slot counts as missed.
INSERT INTO {p}schedule (name, cron, timezone, cursor, declared_at) VALUES (:name, :cron, :timezone, :now, :now)
ON CONFLICT (name) DO NOTHING RETURNING {ScheduleRow}

-- name: pause_schedule
-- Pause a schedule.
UPDATE {p}schedule SET paused_at = :now, paused_until = :until, pause_reason = :reason, paused_by = :actor
WHERE name = :name RETURNING name

-- name: resume_schedule
-- Resume a paused schedule at the given cursor; slots during the pause are not missed.
-- No row: it was not paused, or another process has resumed it.
UPDATE {p}schedule SET paused_at = NULL, paused_until = NULL, pause_reason = '', paused_by = '', cursor = :cursor
WHERE name = :name AND paused_at IS NOT NULL AND cursor = :from_cursor RETURNING name

-- name: touch_schedule
-- Record that a manifest in use still declares a schedule.
UPDATE {p}schedule SET declared_at = :now WHERE name = :name

-- name: claim_slot
-- Claim a slot of a schedule for a job. No row: the slot has its job.
INSERT INTO {p}slot (schedule, slot, job_id) VALUES (:schedule, :slot, :job_id)
ON CONFLICT (schedule, slot) DO NOTHING RETURNING slot

-- name: get_last_slots
-- Find the newest past slot of each schedule.
SELECT s.schedule, s.slot, s.job_id FROM {p}schedule AS d
JOIN {p}slot AS s ON s.schedule = d.name
  AND s.slot = (SELECT max(slot) FROM {p}slot WHERE schedule = d.name AND slot <= :now)

-- name: list_recent_runs
-- List the newest past slots of a schedule with the state of their jobs. NULL: the job was pruned.
SELECT s.slot, s.job_id, job.state, job.started_at, job.finished_at FROM {p}slot AS s
LEFT JOIN {p}job AS job ON job.id = s.job_id
WHERE s.schedule = :name AND s.slot <= :now ORDER BY s.slot DESC LIMIT :limit
