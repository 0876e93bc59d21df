-- Lock finished jobs that retention may remove. Members leave with their batch.
SELECT id, kind, state, owner, error FROM {p}job
WHERE state = :state AND finished_at IS NOT NULL AND finished_at < :before AND batch_id IS NULL
  AND (CAST(:kind AS text) IS NULL OR kind = :kind) AND NOT (kind = ANY (CAST(:except_kinds AS text[])))
ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED
