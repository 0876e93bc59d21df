-- Settle attempts that share one decision and token, with the fence and lock order of `settle`.
-- What they share is sent once; everything else is read from the job's row.
WITH locked AS MATERIALIZED (
  SELECT i.id, i.private, i.data, (SELECT {p}now_us()) AS at,
    job.*
  FROM (SELECT * FROM {set:per_attempt} ORDER BY i.id COLLATE "C") AS i
  {part:lock_row}
), settled AS (
  UPDATE {p}job AS job SET
    state = CAST(:state AS text), worker = NULL, run_at = COALESCE(CAST(:run_at AS bigint), job.run_at),
    queue = COALESCE(CAST(:queue AS text), job.queue),
    lane = CASE WHEN CAST(:state AS text) = 'queued'
                THEN COALESCE(CAST(:lane AS text), substr(job.lane, 1, length(job.lane) - 1)
                                                   || CASE WHEN CAST(:failures AS bigint) > 0 THEN '1' ELSE '0' END)
                ELSE job.lane END,
    failures = CAST(:failures AS bigint), losses = CAST(:losses AS bigint), snoozes = CAST(:snoozes AS bigint),
    alone = CAST(:alone AS boolean), counts = CAST(:counts AS text), settings = CAST(:settings AS text),
    died_code = CASE WHEN CAST(:state AS text) = 'dead' THEN COALESCE(CAST(:code AS text), 'UNKNOWN') END,
    died_class = CASE WHEN CAST(:state AS text) = 'dead' THEN COALESCE(CAST(:cls AS text), 'unknown') END,
    died_group = CASE WHEN CAST(:state AS text) = 'dead'
                      THEN COALESCE(NULLIF(CAST(:fingerprint AS text), ''), 'code-' || COALESCE(CAST(:code AS text), 'UNKNOWN')) END,
    result = CAST(:result AS text), error = CAST(:error AS text), choices = CAST(:choices AS text), reason = CAST(:reason AS text),
    cost = job.cost + CAST(:cost AS double precision),
    finished_at = CASE WHEN CAST(:finished AS boolean) THEN locked.at END,
    cancel_reason = CASE WHEN CAST(:state AS text) = 'queued' THEN NULL ELSE job.cancel_reason END,
    unique_hash = CASE WHEN CAST(:release_key AS boolean) THEN NULL ELSE job.unique_hash END
  FROM locked
  WHERE job.ctid = locked.row_location AND locked.was_state = 'running' AND locked.was_worker = CAST(:worker AS text)
    AND locked.was_token = CAST(:token AS bigint) AND (CAST(:cancel_known AS boolean) OR NOT locked.cancel_requested)
  RETURNING job.id, job.token, job.generation, job.attempt, job.started_at, job.owner, job.batch_id, locked.at, locked.private,
    locked.data
), written AS (
  INSERT INTO {p}attempt ({attempt})
  SELECT id, token, generation, attempt, CAST(:worker AS text), CAST(:settled_by AS text), started_at, at, CAST(:ended AS text),
         CAST(:verb AS text), CAST(:code AS text), CAST(:cls AS text), CAST(:rule AS text), CAST(:public AS text),
         CAST(:evidence AS text), private, CAST(:fingerprint AS text), CAST(:run_at AS bigint), CAST(:reason AS text),
         CAST(:cost AS double precision), CAST(:judged AS text)
  FROM settled
), events AS (
  SELECT at, CAST(:event AS text) AS type, id AS job_id, batch_id, owner, attempt, token, data FROM settled
), {part:write_events}
SELECT id, token FROM settled WHERE (SELECT n FROM logged) > 0
