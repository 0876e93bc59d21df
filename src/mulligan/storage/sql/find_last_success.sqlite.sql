-- Find the newest success of a kind among the newest successes.
-- INDEXED BY: reading stops at the first match, in order of finished_at.
SELECT finished_at FROM (
  SELECT kind, finished_at FROM {p}job INDEXED BY {p}job_for_retention
  WHERE state = 'succeeded' AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT :limit
)
WHERE kind = :kind LIMIT 1
