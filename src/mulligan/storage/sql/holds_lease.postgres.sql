-- Test whether the attempt that adds members to its batch still holds its lease, and lock it.
-- The lock keeps the attempt from ending before the members are committed. KEY SHARE: it can still
-- save checkpoints and report progress, because neither changes the key.
SELECT 1 FROM {p}job
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND batch_id = :batch_id FOR KEY SHARE
