-- Delete the checkpoints of removed jobs.
DELETE FROM {p}checkpoint WHERE job_id = ANY (CAST(:ids AS text[]))
