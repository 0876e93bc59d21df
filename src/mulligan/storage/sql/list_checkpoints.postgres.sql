-- List the checkpoints of jobs without their values.
SELECT job_id, name, token, at FROM {p}checkpoint WHERE job_id = ANY (CAST(:ids AS text[])) ORDER BY job_id, name
