SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event
WHERE job_id IN (SELECT value FROM json_each(:ids)) ORDER BY job_id, id
