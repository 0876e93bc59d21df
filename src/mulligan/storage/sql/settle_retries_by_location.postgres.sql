-- Settle retries that share one decision, as a transaction of its own.
-- Works like `settle_successes_by_location` and needs the same precondition. A running job has no
-- result, error or finished_at, so those columns are not written.
WITH settled AS (
  UPDATE {p}job AS job SET
    state = 'queued', worker = NULL, run_at = CAST(:run_at AS bigint),
    lane = substr(job.lane, 1, length(job.lane) - 1) || CASE WHEN CAST(:failures AS bigint) > 0 THEN '1' ELSE '0' END,
    failures = CAST(:failures AS bigint), losses = CAST(:losses AS bigint), snoozes = CAST(:snoozes AS bigint),
    alone = CAST(:alone AS boolean), counts = CAST(:counts AS text), settings = CAST(:settings AS text),
    reason = CAST(:reason AS text)
  FROM (
    SELECT i.*, (SELECT {p}now_us()) AS at FROM {set:retry} WHERE i.id || '' = i.id ORDER BY i.id COLLATE "C"
  ) AS i
  WHERE job.ctid = CAST(i.row_location AS tid) AND job.id || '' = i.id AND job.state || '' = 'running'
    AND job.worker || '' = CAST(:worker AS text) AND job.token + 0 = CAST(:token AS bigint) AND job.cancel_reason IS NULL
  RETURNING job.id, job.token, job.generation, job.attempt, job.started_at, job.owner, job.batch_id, i.at, i.message,
    CAST(:event_head AS text) || i.duration_ms || CAST(:event_middle AS text) || i.waited_ms || '}' AS data
), written AS (
  INSERT INTO {p}attempt ({attempt})
  SELECT id, token, generation, attempt, CAST(:worker AS text), CAST(:settled_by AS text), started_at, at, CAST(:ended AS text),
         CAST(:verb AS text), CAST(:code AS text), CAST(:cls AS text), CAST(:rule AS text), CAST(:public AS text),
         CAST(:evidence AS text), CAST(:private_head AS text) || message || CAST(:private_middle AS text) || message || CAST(:private_tail AS text),
         CAST(:fingerprint AS text), CAST(:run_at AS bigint), CAST(:reason AS text), 0, CAST(:judged AS text)
  FROM settled
), events AS (
  SELECT at, CAST(:event AS text) AS type, id AS job_id, batch_id, owner, attempt, token, data FROM settled
), {part:write_events}
SELECT id, token FROM settled WHERE (SELECT n FROM logged) > 0
