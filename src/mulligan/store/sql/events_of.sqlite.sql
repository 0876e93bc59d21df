SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event
WHERE id > :cursor AND id <= :top AND type IN (SELECT value FROM json_each(:types)) ORDER BY id LIMIT :most
