-- `finish` as a transaction of its own, which saves the way to the rows: each is looked for where it lay when it was claimed.
-- One that was written since, or is not what it was, is left as it is. Nothing is locked but what is written, in the order of
-- ids, so nobody waits in a circle as long as nothing else is done in the same transaction. That values are equal to
-- themselves makes the planner believe in few of them: else it would read the whole table where that is small. A table of
-- a dozen rows it reads all the same, and locks them as they lie: who waits in a circle then is told, and goes the long way.
WITH settled AS (
  UPDATE {p}job AS job SET
    state = 'succeeded', worker = NULL, result = i.result, reason = 'returned', finished_at = i.at,
    ran_by = CASE job.token WHEN 1 THEN CAST(:worker AS text) END
  FROM (
    SELECT i.*, (SELECT {p}now_us()) AS at FROM {set:lying}
    WHERE i.id || '' = i.id AND i.token + 0 = i.token ORDER BY i.id COLLATE "C"
  ) AS i
  WHERE job.ctid = CAST(i.lies_at AS tid) AND job.id || '' = i.id AND job.state || '' = 'running'
    AND job.worker || '' = :worker AND job.token + 0 = i.token AND job.cancel_reason IS NULL
  RETURNING job.id, job.token, job.generation, job.attempt, job.started_at, job.owner, job.batch_id, i.at, i.data
), {part:finished}
