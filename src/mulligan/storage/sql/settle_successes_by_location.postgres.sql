-- Settle attempts that returned, as a transaction of its own, without a lookup by id.
-- Each row is addressed by the ctid it had when it was claimed. If the row has changed since, it is
-- left unchanged, and the caller settles it with `settle_successes`.
-- Only rows that are written get locked, in order of id, so there is no deadlock as long as nothing
-- else happens in the same transaction. Conditions such as `i.id || '' = i.id` lower the planner's
-- estimate; otherwise it would scan a small table. A table of a dozen rows is scanned anyway and
-- locked in physical order: a deadlock is then reported, and the caller uses `settle_successes`.
WITH settled AS (
  UPDATE {p}job AS job SET
    state = 'succeeded', worker = NULL, result = i.result, reason = 'returned', finished_at = i.at,
    succeeded_by = CASE job.token WHEN 1 THEN CAST(:worker AS text) END
  FROM (
    SELECT i.*, (SELECT {p}now_us()) AS at FROM {set:located_success}
    WHERE i.id || '' = i.id AND i.token + 0 = i.token ORDER BY i.id COLLATE "C"
  ) AS i
  WHERE job.ctid = CAST(i.row_location AS tid) AND job.id || '' = i.id AND job.state || '' = 'running'
    AND job.worker || '' = :worker AND job.token + 0 = i.token AND job.cancel_reason IS NULL
  RETURNING job.id, job.token, job.generation, job.attempt, job.started_at, job.owner, job.batch_id, i.at, i.data
), {part:record_successes}
