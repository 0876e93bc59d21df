-- Statements about schedules and their slots, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: advance_schedule
-- Move the cursor of a schedule by compare-and-set. No row: the cursor moved, or it was paused.
UPDATE {p}schedule SET cursor = :cursor, cron = :cron, timezone = :timezone, declared_at = :now
WHERE name = :name AND cursor = :from_cursor AND paused_at IS NULL RETURNING name
