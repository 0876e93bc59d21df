-- Statements about schedules and their slots, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: advance_schedule
-- Move the cursor of a schedule by compare-and-set.
-- No row: the cursor moved, or the schedule is paused or locked by another worker.
-- The idle timeout ends a transaction that hangs here; its lock would stop the whole schedule.
UPDATE {p}schedule SET cursor = :cursor, cron = :cron, timezone = :timezone, declared_at = :now
WHERE name = (SELECT name FROM {p}schedule WHERE name = :name AND cursor = :from_cursor AND paused_at IS NULL FOR UPDATE SKIP LOCKED)
RETURNING name, set_config('idle_in_transaction_session_timeout', '10s', true)
