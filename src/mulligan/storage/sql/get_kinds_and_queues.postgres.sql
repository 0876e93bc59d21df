-- Read kind and queue of jobs.
SELECT id, kind, queue FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
