-- Find the newest success of a kind among the newest successes. Reading stops at the first match.
SELECT finished_at FROM (
  SELECT kind, finished_at FROM {p}job WHERE state = 'succeeded' AND finished_at IS NOT NULL
  ORDER BY finished_at DESC LIMIT :limit
) AS newest
WHERE kind = :kind ORDER BY finished_at DESC LIMIT 1
