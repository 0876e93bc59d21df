-- Find batches that retention may remove: completed long ago, and expired long ago if they expire.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE outcome_at IS NOT NULL AND outcome_at < :before AND (expires_at IS NULL OR expired_at < :before)
ORDER BY outcome_at LIMIT :limit
