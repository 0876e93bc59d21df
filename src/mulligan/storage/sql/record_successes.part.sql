-- Write attempt rows and events for `settled`. First attempts (token 1) get no attempt row.
written AS (
  INSERT INTO {p}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, reason)
  SELECT id, token, generation, attempt, :worker, :worker, started_at, at, 'returned', 'succeed', 'returned' FROM settled WHERE token > 1
), events AS (
  SELECT at, 'job.succeeded' AS type, id AS job_id, batch_id, owner, attempt, token, data FROM settled
), {part:write_events}
SELECT id, token FROM settled WHERE (SELECT n FROM logged) > 0
