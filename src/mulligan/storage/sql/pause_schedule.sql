-- Pause a schedule.
UPDATE {p}schedule SET paused_at = :now, paused_until = :until, pause_reason = :reason, paused_by = :actor
WHERE name = :name RETURNING name
