SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event
WHERE job_id = ANY (CAST(:ids AS text[])) ORDER BY job_id, id
