-- Settle attempts that returned: running to succeeded, with the fence and lock order of `settle`.
-- Only four columns are sent; everything else is read from the job's row.
WITH locked AS MATERIALIZED (
  SELECT i.*, (SELECT {p}now_us()) AS at, job.*
  FROM (SELECT * FROM {set:success} ORDER BY i.id COLLATE "C") AS i
  {part:lock_row}
), settled AS (
  UPDATE {p}job AS job SET
    state = 'succeeded', worker = NULL, result = locked.result, reason = 'returned', finished_at = locked.at,
    succeeded_by = CASE job.token WHEN 1 THEN CAST(:worker AS text) END
  FROM locked
  WHERE job.ctid = locked.row_location AND locked.was_state = 'running' AND locked.was_worker = :worker
    AND locked.was_token = locked.token AND NOT locked.cancel_requested
  RETURNING job.id, job.token, job.generation, job.attempt, job.started_at, job.owner, job.batch_id, locked.at, locked.data
), {part:record_successes}
