-- Compare-and-set on the cursor. No row: somebody else was quicker, or has paused it, or is at it now.
-- Who is frozen here would stop the schedule for everybody: the server ends a transaction that is idle for too long.
UPDATE {p}schedule SET cursor = :cursor, cron = :cron, timezone = :timezone, named_at = :now
WHERE name = (SELECT name FROM {p}schedule WHERE name = :name AND cursor = :seen AND paused_at IS NULL FOR UPDATE SKIP LOCKED)
RETURNING name, set_config('idle_in_transaction_session_timeout', '10s', true)
