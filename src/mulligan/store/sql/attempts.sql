SELECT {attempt} FROM {p}attempt WHERE job_id = :id ORDER BY token
