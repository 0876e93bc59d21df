-- For upkeep: sealed in a caller's transaction and not told of yet, or all members ended and nobody has noticed.
-- Asked this way round, so that no plan walks over all batches that ever were.
SELECT id FROM {p}batch_progress AS progress
WHERE outcome IS NULL AND EXISTS (
  SELECT 1 FROM {p}batch AS definition
  WHERE definition.id = progress.id AND sealed_at IS NOT NULL AND (NOT told OR {part:all_ended})
)
ORDER BY id LIMIT :most
