-- What a claim must know first, in one answer: the clock, the gates, the limits, and a loose index scan over job_for_claim
-- (one probe per (lane, priority) present, however many jobs there are).
WITH RECURSIVE found AS (
  (SELECT lane, priority, run_at FROM {p}job WHERE state = 'queued' ORDER BY lane, priority, run_at LIMIT 1)
  UNION ALL
  SELECT nxt.lane, nxt.priority, nxt.run_at
  FROM found CROSS JOIN LATERAL (
    SELECT lane, priority, run_at FROM {p}job
    WHERE state = 'queued' AND (lane, priority) > (found.lane, found.priority)
    ORDER BY lane, priority, run_at LIMIT 1
  ) AS nxt
)
SELECT 'now', NULL, NULL, {p}now_us(), NULL, NULL, NULL
UNION ALL SELECT 'gate', scope, key, since, until, reason, actor FROM {p}gate
UNION ALL SELECT 'limit', scope, key, concurrency, until, CAST(rate AS text), NULL FROM {p}limits
UNION ALL (SELECT 'lane', lane, NULL, priority, run_at, NULL, NULL FROM found LIMIT :most)
