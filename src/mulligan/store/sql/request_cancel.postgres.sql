-- Asks, and hints: the worker that runs it looks at once instead of with its next renewal.
WITH asked AS (
  UPDATE {p}job SET cancel_reason = :reason
  WHERE id = :id AND token = :token AND state = 'running' AND cancel_reason IS NULL RETURNING id
)
SELECT id, pg_notify(CAST(:channel AS text), '') FROM asked
