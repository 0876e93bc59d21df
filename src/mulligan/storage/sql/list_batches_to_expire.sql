-- Find batches that are due to expire: past their time, and completed or never sealed.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE expires_at IS NOT NULL AND expired_at IS NULL AND expires_at <= :now AND (outcome IS NOT NULL OR sealed_at IS NULL)
ORDER BY expires_at LIMIT :limit
