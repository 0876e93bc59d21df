-- Delete the attempts of removed jobs.
DELETE FROM {p}attempt WHERE job_id IN (SELECT value FROM json_each(:ids))
