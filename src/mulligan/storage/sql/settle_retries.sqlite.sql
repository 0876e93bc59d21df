-- Settle retries that share one decision: running to queued, fenced by worker and token.
-- A running job has no result, error or finished_at, so those columns are not written.
UPDATE {p}job SET state = 'queued', worker = NULL, run_at = :run_at,
  lane = substr(lane, 1, length(lane) - 1) || CASE WHEN :failures > 0 THEN '1' ELSE '0' END,
  failures = :failures, losses = :losses, snoozes = :snoozes, alone = :alone, counts = :counts, settings = :settings,
  reason = :reason
WHERE id IN (SELECT value FROM json_each(:ids))
  AND +worker = :worker AND token = :token AND state = 'running' AND cancel_reason IS NULL
