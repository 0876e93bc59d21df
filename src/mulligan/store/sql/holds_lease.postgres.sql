-- The attempt that adds members cannot end before they are there. KEY SHARE: it can still keep checkpoints and tell of
-- its progress meanwhile, since neither touches the key.
SELECT 1 FROM {p}job
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND batch_id = :batch_id FOR KEY SHARE
