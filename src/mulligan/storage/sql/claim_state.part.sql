-- Select everything a claim must know: clock, gates, limits, active guards and lanes with jobs.
SELECT 'now', NULL, NULL, {p}now_us(), NULL, NULL, NULL
UNION ALL SELECT 'gate', scope, key, since, until, reason, actor FROM {p}gate
UNION ALL SELECT 'limit', scope, key, concurrency, until, CAST(rate AS text), NULL FROM {p}limits
UNION ALL SELECT 'guard', scope, key, version, NULL, body, NULL FROM {p}guard WHERE active
UNION ALL (SELECT 'lane', lane, NULL, priority, run_at, NULL, NULL FROM found LIMIT :lanes)
