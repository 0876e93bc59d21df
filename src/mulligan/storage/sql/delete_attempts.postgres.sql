-- Delete the attempts of removed jobs.
DELETE FROM {p}attempt WHERE job_id = ANY (CAST(:ids AS text[]))
