-- Read everything a claim must know: clock, gates, limits, active guards and lanes with jobs.
-- Also read the due jobs of the lanes that this worker expects to be due.
WITH RECURSIVE {part:lanes_with_jobs}, wanted AS (
  SELECT found.lane, found.priority, found.run_at AS since FROM found
  JOIN unnest(CAST(:lanes AS text[]), CAST(:priorities AS bigint[])) AS expected(lane, priority)
    ON expected.lane = found.lane AND expected.priority = found.priority
)
SELECT 'now', NULL, NULL, {p}now_us(), NULL, NULL, NULL
UNION ALL SELECT 'gate', scope, key, since, until, reason, actor FROM {p}gate
UNION ALL SELECT 'limit', scope, key, concurrency, until, CAST(rate AS text), NULL FROM {p}limits
UNION ALL SELECT 'guard', scope, key, version, NULL, body, NULL FROM {p}guard WHERE active
UNION ALL (SELECT 'lane', lane, NULL, priority, run_at, NULL, NULL FROM found LIMIT :max_lanes)
UNION ALL SELECT 'job', due.lane, due.id, due.priority, due.run_at, NULL, NULL FROM {part:due_jobs}
