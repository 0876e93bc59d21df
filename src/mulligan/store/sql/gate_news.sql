-- Gates and jobs are told in the same log. Near the ends of a wait is what began it and what ended it.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data
FROM (SELECT * FROM {p}event WHERE id > :after AND id < :before ORDER BY id LIMIT :most) AS begins
WHERE type IN ('queue.paused', 'queue.resumed', 'dependency.opened', 'dependency.closed', 'kind.held', 'kind.released')
UNION
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data
FROM (SELECT * FROM {p}event WHERE id > :after AND id < :before ORDER BY id DESC LIMIT :most) AS ends
WHERE type IN ('queue.paused', 'queue.resumed', 'dependency.opened', 'dependency.closed', 'kind.held', 'kind.released')
ORDER BY id
