-- List the checkpoints of jobs without their values.
SELECT job_id, name, token, at FROM {p}checkpoint WHERE job_id IN (SELECT value FROM json_each(:ids)) ORDER BY job_id, name
