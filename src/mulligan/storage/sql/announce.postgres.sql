-- Write the job.queued events of jobs that were inserted in callers' transactions.
-- SKIP LOCKED: several workers may do this at once, each for other jobs.
WITH silent AS MATERIALIZED (
  SELECT id AS silent_id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED
), heard AS (
  UPDATE {p}job SET announced = true FROM silent WHERE id = silent_id
  RETURNING id, batch_id, owner, kind, queue, run_at, created_at
), news AS (
  {part:queued}
  FROM heard
), {part:told}
SELECT id FROM heard WHERE (SELECT n FROM told) > 0
