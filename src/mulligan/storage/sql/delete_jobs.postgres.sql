-- Delete jobs.
DELETE FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
