-- Settle one attempt: running to the state that was decided, fenced by id, worker, token and state.
-- If a cancel was requested after the decision, no row changes and the attempt is decided again.
UPDATE {p}job SET
  state = :state, worker = NULL, run_at = COALESCE(:run_at, run_at), queue = COALESCE(:queue, queue),
  lane = CASE WHEN :state = 'queued'
              THEN COALESCE(:lane, substr(lane, 1, length(lane) - 1) || CASE WHEN :failures > 0 THEN '1' ELSE '0' END)
              ELSE lane END,
  failures = :failures, losses = :losses, snoozes = :snoozes, alone = :alone, counts = :counts, settings = :settings,
  died_code = CASE WHEN :state = 'dead' THEN COALESCE(:code, 'UNKNOWN') END,
  died_class = CASE WHEN :state = 'dead' THEN COALESCE(:cls, 'unknown') END,
  died_group = CASE WHEN :state = 'dead' THEN COALESCE(NULLIF(:fingerprint, ''), 'code-' || COALESCE(:code, 'UNKNOWN')) END,
  result = :result, error = :error, choices = :choices, reason = :reason, cost = cost + :cost,
  finished_at = CASE WHEN :finished THEN :now END, succeeded_by = :succeeded_by,
  cancel_reason = CASE WHEN :state = 'queued' THEN NULL ELSE cancel_reason END,
  unique_hash = CASE WHEN :release_key THEN NULL ELSE unique_hash END
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND (cancel_reason IS NULL OR :cancel_known)
