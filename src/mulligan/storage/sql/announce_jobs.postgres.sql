-- Write the job.queued events of jobs that were inserted in callers' transactions.
-- SKIP LOCKED: several workers may do this at once, each for other jobs.
WITH unannounced AS MATERIALIZED (
  SELECT id AS unannounced_id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
), announced_jobs AS (
  UPDATE {p}job SET announced = true FROM unannounced WHERE id = unannounced_id
  RETURNING id, batch_id, owner, kind, queue, run_at, created_at
), events AS (
  {part:queued_events}
  FROM announced_jobs
), {part:write_events}
SELECT id FROM announced_jobs WHERE (SELECT n FROM logged) > 0
