-- Statements of schedules/queries.py that differ on SQLite. See storage/statements.py for the macros.

-- name: advance_schedule
-- Move the cursor of a schedule by compare-and-set. No row: the cursor moved, or it was paused.
UPDATE {p}schedule SET cursor = :cursor, cron = :cron, timezone = :timezone, declared_at = :now
WHERE name = :name AND cursor = :from_cursor AND paused_at IS NULL RETURNING name
