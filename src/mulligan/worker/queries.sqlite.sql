-- Statements about workers, their leases, and retention of all features, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: save_checkpoint
-- Save a checkpoint, if the attempt still holds its lease.
INSERT INTO {p}checkpoint (job_id, name, value, token, at)
SELECT id, :name, :value, token, :now FROM {p}job
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running'
ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value, token = excluded.token, at = excluded.at
RETURNING job_id
