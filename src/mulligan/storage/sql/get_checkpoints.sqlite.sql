-- Read the checkpoints of jobs.
SELECT job_id, name, value FROM {p}checkpoint WHERE job_id IN (SELECT value FROM json_each(:ids))
