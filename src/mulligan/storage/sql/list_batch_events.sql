-- List the events of a batch itself, without those of its members.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event
WHERE batch_id = :id AND job_id IS NULL ORDER BY id
