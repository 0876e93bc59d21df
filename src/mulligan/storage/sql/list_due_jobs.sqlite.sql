-- List the next due jobs of one lane and priority.
-- One range scan of job_for_claim: jobs that are due later are never read.
SELECT priority, run_at, id, lane FROM {p}job
WHERE state = 'queued' AND lane = :lane AND priority = :priority AND run_at <= :now
  AND (deadline_at IS NULL OR deadline_at > :now)
ORDER BY run_at, id LIMIT :depth
