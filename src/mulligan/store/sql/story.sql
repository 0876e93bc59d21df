SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event WHERE job_id = :id ORDER BY id
