-- Settle one attempt: running to the state that was decided, fenced by id, worker, token and state.
-- If a cancel was requested after the decision, no row changes and the attempt is decided again.
UPDATE {p}job SET
  {part:settle_assignments}
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND (cancel_reason IS NULL OR :cancel_known)
