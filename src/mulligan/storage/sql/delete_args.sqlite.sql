-- Delete the indexed arguments of removed jobs.
DELETE FROM {p}job_arg WHERE job_id IN (SELECT value FROM json_each(:ids))
