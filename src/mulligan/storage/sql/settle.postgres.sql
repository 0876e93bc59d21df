-- Settle attempts: running to the state that was decided, fenced by id, worker, token and state.
-- If a cancel was requested after the decision, the row does not change and is decided again.
-- All rows are locked first, one lookup each, in order of id, so that transactions cannot deadlock:
-- an ending that is decided again finds its row locked already. The fence is compared with the
-- locked values. The input columns are carried through every CTE to avoid self-joins.
WITH locked AS MATERIALIZED (
  SELECT i.*, (SELECT {p}now_us()) AS at, job.*
  FROM (SELECT * FROM {set:settlement} ORDER BY i.id COLLATE "C") AS i
  {part:lock_row}
), settled AS (
  UPDATE {p}job AS job SET
    state = locked.state, worker = NULL, run_at = COALESCE(locked.run_at, job.run_at),
    queue = COALESCE(locked.queue, job.queue),
    lane = CASE WHEN locked.state = 'queued'
                THEN COALESCE(locked.lane, substr(job.lane, 1, length(job.lane) - 1)
                                           || CASE WHEN locked.failures > 0 THEN '1' ELSE '0' END)
                ELSE job.lane END,
    failures = locked.failures, losses = locked.losses, snoozes = locked.snoozes, alone = locked.alone,
    counts = locked.counts, settings = locked.settings,
    died_code = CASE WHEN locked.state = 'dead' THEN COALESCE(locked.code, 'UNKNOWN') END,
    died_class = CASE WHEN locked.state = 'dead' THEN COALESCE(locked.cls, 'unknown') END,
    died_group = CASE WHEN locked.state = 'dead'
                      THEN COALESCE(NULLIF(locked.fingerprint, ''), 'code-' || COALESCE(locked.code, 'UNKNOWN')) END,
    result = locked.result, error = locked.error, choices = locked.choices, reason = locked.reason,
    cost = job.cost + locked.cost,
    finished_at = CASE WHEN locked.finished THEN locked.at END, succeeded_by = locked.succeeded_by,
    cancel_reason = CASE WHEN locked.state = 'queued' THEN NULL ELSE job.cancel_reason END,
    unique_hash = CASE WHEN locked.release_key THEN NULL ELSE job.unique_hash END
  FROM locked
  WHERE job.ctid = locked.row_location AND locked.was_state = 'running' AND locked.was_worker = locked.worker
    AND locked.was_token = locked.token AND (locked.cancel_known OR NOT locked.cancel_requested)
  RETURNING locked.*
), written AS (
  INSERT INTO {p}attempt ({attempt})
  SELECT id, token, generation, attempt, worker, settled_by, started_at, at, ended, verb, code, cls, rule, public, evidence,
         private, fingerprint, run_at, reason, cost, judged
  FROM settled WHERE succeeded_by IS NULL
), events AS (
  SELECT at, event AS type, id AS job_id, batch_id, owner, attempt, token, data FROM settled
), {part:write_events}
SELECT id, token FROM settled WHERE (SELECT n FROM logged) > 0
