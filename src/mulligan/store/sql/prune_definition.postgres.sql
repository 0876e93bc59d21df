-- Upkeep waits for nobody: somebody who was refused may still share it in an open transaction.
DELETE FROM {p}batch WHERE id IN (SELECT id FROM {p}batch WHERE id = :id FOR UPDATE SKIP LOCKED) RETURNING id
