-- Statements about gates, limits and guards, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: count_running
-- Count running jobs by queue and dependencies. INDEXED BY: SQLite would scan the table.
SELECT queue, uses, count(*) FROM {p}job INDEXED BY {p}job_for_sweep WHERE state = 'running' GROUP BY queue, uses

-- name: count_waiting_by_lane
-- Count the queued jobs of every lane: due now, and due later. Counting stops at the cap.
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
SELECT lane, run_at,
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS due WHERE due.state = 'queued' AND due.lane = found.lane
                         AND due.priority = found.priority AND due.run_at <= :at_time LIMIT :cap)),
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS later WHERE later.state = 'queued' AND later.lane = found.lane
                         AND later.priority = found.priority AND later.run_at > :at_time LIMIT :cap))
FROM found LIMIT :limit

-- name: take_tallies
-- Take and delete the tallies of one guard.
DELETE FROM {p}tally WHERE scope = :scope AND key = :key RETURNING body

-- name: find_last_success
-- Find the newest success of a kind among the newest successes.
-- INDEXED BY: reading stops at the first match, in order of finished_at.
SELECT finished_at FROM (
  SELECT kind, finished_at FROM {p}job INDEXED BY {p}job_for_retention
  WHERE state = 'succeeded' AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT :limit
)
WHERE kind = :kind LIMIT 1

-- name: find_nth_success
-- Find when the n-th newest success was. INDEXED BY: in order of finished_at.
SELECT finished_at FROM {p}job INDEXED BY {p}job_for_retention
WHERE state = 'succeeded' AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1 OFFSET :n

-- name: insert_token_buckets
-- Insert the token buckets that do not exist. A new bucket is full: its last refill lies at time 0.
INSERT INTO {p}meter (scope, key, tokens, at)
SELECT scopes.value, keys.value, 0, 0 FROM json_each(:scopes) AS scopes JOIN json_each(:keys) AS keys ON keys.key = scopes.key
WHERE true
ON CONFLICT (scope, key) DO NOTHING RETURNING scope, key

-- name: lock_token_buckets
-- Read token buckets.
SELECT scope, key, tokens, at, :now FROM {p}meter
WHERE (scope, key) IN (
  SELECT scopes.value, keys.value FROM json_each(:scopes) AS scopes JOIN json_each(:keys) AS keys ON keys.key = scopes.key
)

-- name: update_token_buckets
-- Store the tokens that are left in buckets.
UPDATE {p}meter SET tokens = spent.tokens, at = spent.at
FROM (
  SELECT scopes.value AS scope, keys.value AS key, tokens.value AS tokens, times.value AS at
  FROM json_each(:scopes) AS scopes JOIN json_each(:keys) AS keys ON keys.key = scopes.key
  JOIN json_each(:tokens) AS tokens ON tokens.key = scopes.key JOIN json_each(:times) AS times ON times.key = scopes.key
) AS spent
WHERE {p}meter.scope = spent.scope AND {p}meter.key = spent.key

-- name: read_claim_state
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

-- name: list_due_jobs
-- List the next due jobs of one lane and priority.
-- One range scan of job_for_claim: jobs that are due later are never read.
SELECT priority, run_at, id, lane FROM {p}job
WHERE state = 'queued' AND lane = :lane AND priority = :priority AND run_at <= :now
  AND (deadline_at IS NULL OR deadline_at > :now)
ORDER BY run_at, id LIMIT :depth
