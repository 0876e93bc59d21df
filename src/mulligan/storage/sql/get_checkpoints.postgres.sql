-- Read the checkpoints of jobs.
SELECT job_id, name, value FROM {p}checkpoint WHERE job_id = ANY (CAST(:ids AS text[]))
