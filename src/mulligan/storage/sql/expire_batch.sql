-- Mark a completed batch as expired.
UPDATE {p}batch_progress SET expired_at = :now
WHERE id = :id AND outcome IS NOT NULL AND expired_at IS NULL AND expires_at <= :now RETURNING id
