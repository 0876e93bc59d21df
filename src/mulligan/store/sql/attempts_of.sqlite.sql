SELECT {attempt} FROM {p}attempt WHERE job_id IN (SELECT value FROM json_each(:ids)) ORDER BY job_id, token
