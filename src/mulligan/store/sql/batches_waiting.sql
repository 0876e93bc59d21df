-- For upkeep: sealed in a caller's transaction and not told of yet, or all members ended and nobody has noticed.
SELECT id FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE outcome IS NULL AND sealed_at IS NOT NULL AND (NOT told OR {part:all_ended})
ORDER BY id LIMIT :most
