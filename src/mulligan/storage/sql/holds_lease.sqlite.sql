-- Test whether the attempt that adds members to its batch still holds its lease.
SELECT 1 FROM {p}job
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND batch_id = :batch_id
