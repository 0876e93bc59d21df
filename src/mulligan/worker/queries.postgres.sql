-- Statements about workers, their leases, and retention of all features, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: save_checkpoint
-- Save a checkpoint, if the attempt still holds its lease.
-- The row lock keeps the lease from being declared lost before the commit.
-- NO KEY UPDATE: the attempt may be adding members in another transaction, which holds KEY SHARE
-- (holds_lease). With a stronger lock the attempt would wait for itself.
WITH fenced AS MATERIALIZED (
  SELECT id, token FROM {p}job
  WHERE id = :id AND worker = :worker AND token = :token AND state = 'running'
  FOR NO KEY UPDATE
)
INSERT INTO {p}checkpoint (job_id, name, value, token, at)
SELECT id, :name, :value, token, {p}now_us() FROM fenced
ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value, token = excluded.token, at = excluded.at
RETURNING job_id
