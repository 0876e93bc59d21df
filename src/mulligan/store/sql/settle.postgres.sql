-- running → wherever the decision says: fenced by id, worker, token and state, locked in the order of ids.
-- A cancel requested since the decision was made is not overwritten: such rows stay out and come back as refusals.
-- The input rides along through each step, so that nothing is ever joined by name to itself.
WITH held AS MATERIALIZED (
  SELECT i.*, {p}now_us() AS at
  FROM {set:settlement} JOIN {p}job AS job ON job.id = i.id
  WHERE job.state = 'running' AND job.worker = i.worker AND job.token = i.token
    AND (job.cancel_reason IS NULL OR i.saw_cancel)
  ORDER BY job.id
  FOR UPDATE OF job
), settled AS (
  UPDATE {p}job AS job SET
    state = held.state, worker = NULL, run_at = COALESCE(held.run_at, job.run_at),
    lane = COALESCE(held.lane, job.lane),
    failures = held.failures, losses = held.losses, snoozes = held.snoozes, alone = held.alone,
    result = held.result, error = held.error, choices = held.choices, reason = held.reason,
    cost = job.cost + held.cost,
    finished_at = CASE WHEN held.finished THEN held.at END,
    cancel_reason = CASE WHEN held.state = 'queued' THEN NULL ELSE job.cancel_reason END,
    unique_hash = CASE WHEN held.free_key THEN NULL ELSE job.unique_hash END
  FROM held WHERE job.id = held.id
  RETURNING held.*
), written AS (
  INSERT INTO {p}attempt ({attempt})
  SELECT id, token, generation, attempt, worker, settled_by, started_at, at, ended, verb, code, cls, rule, public, evidence,
         private, fingerprint, run_at, reason, cost
  FROM settled
), mark AS MATERIALIZED (
  SELECT {p}mark_events() AS seen
), told AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, event, id, batch_id, owner, attempt, token, data FROM settled CROSS JOIN mark
)
SELECT id FROM settled
