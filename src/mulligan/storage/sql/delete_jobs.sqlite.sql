-- Delete jobs.
DELETE FROM {p}job WHERE id IN (SELECT value FROM json_each(:ids))
