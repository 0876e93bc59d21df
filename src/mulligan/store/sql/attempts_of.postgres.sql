SELECT {attempt} FROM {p}attempt WHERE job_id = ANY (CAST(:ids AS text[])) ORDER BY job_id, token
