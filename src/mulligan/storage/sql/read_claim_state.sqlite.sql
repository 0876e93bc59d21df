-- Read everything a claim must know: clock, gates, limits, active guards and lanes with jobs.
-- The recursive query makes two index probes per lane and priority, however many jobs there are.
-- SQLite would scan a whole lane for a single condition such as (lane, priority) > (...).
WITH RECURSIVE found (lane, priority, run_at) AS (
  SELECT * FROM (SELECT lane, priority, run_at FROM {p}job WHERE state = 'queued' ORDER BY lane, priority, run_at LIMIT 1)
  UNION ALL
  SELECT nxt.lane, nxt.priority, nxt.run_at
  FROM found JOIN {p}job AS nxt ON nxt.rowid = COALESCE(
    (SELECT rowid FROM {p}job WHERE state = 'queued' AND lane = found.lane AND priority > found.priority
     ORDER BY priority, run_at LIMIT 1),
    (SELECT rowid FROM {p}job WHERE state = 'queued' AND lane > found.lane ORDER BY lane, priority, run_at LIMIT 1)
  )
)
SELECT 'now', NULL, NULL, :now, NULL, NULL, NULL
UNION ALL SELECT 'gate', scope, key, since, until, reason, actor FROM {p}gate
UNION ALL SELECT 'limit', scope, key, concurrency, until, CAST(rate AS text), NULL FROM {p}limits
UNION ALL SELECT 'guard', scope, key, version, NULL, body, NULL FROM {p}guard WHERE active
UNION ALL SELECT * FROM (SELECT 'lane', lane, NULL, priority, run_at, NULL, NULL FROM found LIMIT :max_lanes)
