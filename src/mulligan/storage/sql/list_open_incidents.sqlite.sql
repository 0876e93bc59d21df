-- List the open incidents of causes.
SELECT {incident} FROM {p}incident WHERE closed_at IS NULL AND key IN (SELECT value FROM json_each(:keys))
