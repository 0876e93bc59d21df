-- List those of these jobs that exist.
SELECT id FROM {p}job WHERE id IN (SELECT value FROM json_each(:ids))
