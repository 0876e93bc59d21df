-- One range scan of job_for_claim: future rows of the lane are never read.
{part:as_taken}
WHERE state = 'queued' AND lane = :lane AND priority = :priority AND run_at <= :now
  AND (deadline_at IS NULL OR deadline_at > :now)
ORDER BY run_at, id LIMIT :most
