-- Settle attempts that returned: running to succeeded, with the fence and lock order of `settle`.
-- Only four columns are sent; everything else is read from the job's row.
WITH locked AS MATERIALIZED (
  SELECT i.*, (SELECT {p}now_us()) AS at, job.place_of, job.was_state, job.was_worker, job.was_token, job.was_asked
  FROM (SELECT * FROM {set:done} ORDER BY i.id COLLATE "C") AS i
  {part:row_locked}
), settled AS (
  UPDATE {p}job AS job SET
    state = 'succeeded', worker = NULL, result = locked.result, reason = 'returned', finished_at = locked.at,
    ran_by = CASE job.token WHEN 1 THEN CAST(:worker AS text) END
  FROM locked
  WHERE job.ctid = locked.place_of AND locked.was_state = 'running' AND locked.was_worker = :worker
    AND locked.was_token = locked.token AND NOT locked.was_asked
  RETURNING job.id, job.token, job.generation, job.attempt, job.started_at, job.owner, job.batch_id, locked.at, locked.data
), {part:finished}
