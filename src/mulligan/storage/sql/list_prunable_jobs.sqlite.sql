-- Find finished jobs that retention may remove. Members leave with their batch.
SELECT id, kind, state, owner, error FROM {p}job
WHERE state = :state AND finished_at IS NOT NULL AND finished_at < :before AND batch_id IS NULL
  AND (:kind IS NULL OR kind = :kind) AND kind NOT IN (SELECT value FROM json_each(:except_kinds))
ORDER BY finished_at LIMIT :limit
