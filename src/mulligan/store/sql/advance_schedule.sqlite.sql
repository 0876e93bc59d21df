-- Compare-and-set on the cursor. No row: somebody else was quicker.
UPDATE {p}schedule SET cursor = :cursor, cron = :cron, timezone = :timezone, named_at = :now
WHERE name = :name AND cursor = :seen RETURNING name
