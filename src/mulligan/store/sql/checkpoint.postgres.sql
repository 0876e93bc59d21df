-- The row is locked, so that the lease cannot be given up for lost before this is committed. NO KEY: the attempt may be
-- adding members to its batch in a transaction of its own, which shares the key, and would wait for itself.
WITH fenced AS MATERIALIZED (
  SELECT id, token FROM {p}job
  WHERE id = :id AND worker = :worker AND token = :token AND state = 'running'
  FOR NO KEY UPDATE
)
INSERT INTO {p}checkpoint (job_id, name, value, token, at)
SELECT id, :name, :value, token, {p}now_us() FROM fenced
ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value, token = excluded.token, at = excluded.at
RETURNING job_id
