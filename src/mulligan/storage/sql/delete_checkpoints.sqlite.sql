-- Delete the checkpoints of removed jobs.
DELETE FROM {p}checkpoint WHERE job_id IN (SELECT value FROM json_each(:ids))
