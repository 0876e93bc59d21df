-- Delete subscriptions of batches that were removed.
DELETE FROM {p}subscription WHERE batch_id IS NOT NULL AND created_at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}batch AS b WHERE b.id = batch_id)
RETURNING id
