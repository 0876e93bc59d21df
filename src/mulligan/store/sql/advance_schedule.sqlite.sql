-- Compare-and-set on the cursor. No row: somebody else was quicker, or has paused it.
UPDATE {p}schedule SET cursor = :cursor, cron = :cron, timezone = :timezone, named_at = :now
WHERE name = :name AND cursor = :seen AND paused_at IS NULL RETURNING name
