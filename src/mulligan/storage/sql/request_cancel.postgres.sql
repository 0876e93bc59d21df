-- Request that a running job be cancelled, and notify workers so that its own acts at once.
WITH requested AS (
  UPDATE {p}job SET cancel_reason = :reason
  WHERE id = :id AND token = :token AND state = 'running' AND cancel_reason IS NULL RETURNING id
)
SELECT id, pg_notify(CAST(:channel AS text), '') FROM requested
