-- Delete the indexed arguments of removed jobs.
DELETE FROM {p}job_arg WHERE job_id = ANY (CAST(:ids AS text[]))
