-- Find sent items whose job has ended its first counted attempt since the retry, or will have none.
-- A job that died unclaimed and then succeeded at once has no attempt row; its `succeeded_by` is set.
SELECT item.place, item.cause,
       COALESCE(attempt.verb, CASE WHEN job.succeeded_by IS NOT NULL AND job.generation = item.generation + 1 THEN 'succeed' END),
       NULLIF(attempt.fingerprint, ''), attempt.code,
       COALESCE(NULLIF(attempt.public, ''), attempt.reason, ''), job.state, job.died_group,
       CASE WHEN job.generation > item.generation + 1 THEN 1 ELSE 0 END
FROM {p}operation_item AS item
LEFT JOIN {p}job AS job ON job.id = item.job_id
LEFT JOIN {p}attempt AS attempt ON attempt.job_id = item.job_id AND attempt.token = (
  SELECT min(first.token) FROM {p}attempt AS first
  WHERE first.job_id = item.job_id AND first.generation = item.generation + 1
    AND first.verb IN ('succeed', 'retry', 'die', 'park', 'snooze', 'stop'))
WHERE item.operation = :operation AND item.state = 'sent'
  AND (attempt.token IS NOT NULL OR job.id IS NULL OR job.generation > item.generation + 1
       OR job.state IN ('succeeded', 'dead', 'cancelled', 'parked'))
ORDER BY item.place LIMIT :limit
