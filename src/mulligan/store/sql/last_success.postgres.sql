SELECT max(CASE WHEN kind = :kind THEN finished_at END), count(*), min(finished_at) FROM (
  SELECT kind, finished_at FROM {p}job WHERE state = 'succeeded' AND finished_at IS NOT NULL
  ORDER BY finished_at DESC LIMIT :most
) AS newest
