-- Delete incidents that were closed long ago.
DELETE FROM {p}incident WHERE id IN (
  SELECT id FROM {p}incident WHERE closed_at IS NOT NULL AND closed_at < :before ORDER BY closed_at LIMIT :limit
) RETURNING id
