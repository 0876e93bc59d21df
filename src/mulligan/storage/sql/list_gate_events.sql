-- Read the gate events near both ends of a job's wait: one began it, another may have ended it.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data
FROM (SELECT * FROM {p}event WHERE id > :after AND id < :before ORDER BY id LIMIT :limit) AS begins
WHERE type IN ('queue.paused', 'queue.resumed', 'dependency.opened', 'dependency.closed', 'kind.held', 'kind.released')
UNION
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data
FROM (SELECT * FROM {p}event WHERE id > :after AND id < :before ORDER BY id DESC LIMIT :limit) AS ends
WHERE type IN ('queue.paused', 'queue.resumed', 'dependency.opened', 'dependency.closed', 'kind.held', 'kind.released')
ORDER BY id
