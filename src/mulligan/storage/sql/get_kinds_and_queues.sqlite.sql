-- Read kind and queue of jobs.
SELECT id, kind, queue FROM {p}job WHERE id IN (SELECT value FROM json_each(:ids))
