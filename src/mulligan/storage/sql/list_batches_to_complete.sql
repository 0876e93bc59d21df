-- Find batches that upkeep must complete: sealed without an event, or with all members ended.
-- EXISTS makes the planner start from batches without an outcome instead of all batches.
SELECT id FROM {p}batch_progress AS progress
WHERE outcome IS NULL AND EXISTS (
  SELECT 1 FROM {p}batch AS definition
  WHERE definition.id = progress.id AND sealed_at IS NOT NULL AND (NOT sealed_event_written OR {part:all_members_ended})
)
ORDER BY id LIMIT :limit
