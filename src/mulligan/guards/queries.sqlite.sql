-- Statements about gates, limits and guards, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: count_running
-- Count running jobs by queue and dependencies. INDEXED BY: SQLite would scan the table.
SELECT queue, uses, count(*) FROM {p}job INDEXED BY {p}job_for_sweep WHERE state = 'running' GROUP BY queue, uses

-- name: list_running_groups
-- Count running jobs by worker, queue and kind, with the start of the first. INDEXED BY: SQLite would scan the table.
SELECT worker, queue, kind, count(*), min(started_at) FROM {p}job INDEXED BY {p}job_for_sweep WHERE state = 'running'
GROUP BY worker, queue, kind ORDER BY 4 DESC, 1, 2, 3 LIMIT :limit

-- name: count_waiting_by_lane
-- Count the queued jobs of every lane: due now, and due later. Counting stops at the cap.
WITH RECURSIVE {part:lanes_with_jobs}
SELECT lane, run_at,
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS due WHERE due.state = 'queued' AND due.lane = found.lane
                         AND due.priority = found.priority AND due.run_at <= :at_time LIMIT :cap)),
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS later WHERE later.state = 'queued' AND later.lane = found.lane
                         AND later.priority = found.priority AND later.run_at > :at_time LIMIT :cap))
FROM found WHERE place > 0

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

-- fragment: lanes_with_jobs
-- List lanes and priorities that have queued jobs, with the first run_at, behind a position.
-- The recursive query makes two index probes per lane and priority, however many jobs there are.
-- SQLite would scan a whole lane for a single condition such as (lane, priority) > (...).
found (lane, priority, run_at, place) AS (
  SELECT :after_lane, :after_priority, NULL, 0
  UNION ALL
  SELECT nxt.lane, nxt.priority, nxt.run_at, found.place + 1
  FROM found JOIN {p}job AS nxt ON nxt.rowid = COALESCE(
    (SELECT rowid FROM {p}job WHERE state = 'queued' AND lane = found.lane AND priority > found.priority
     ORDER BY priority, run_at LIMIT 1),
    (SELECT rowid FROM {p}job WHERE state = 'queued' AND lane > found.lane ORDER BY lane, priority, run_at LIMIT 1)
  )
  WHERE found.place < :max_lanes
)

-- name: read_claim_state
-- Read everything a claim must know: clock, gates, limits, active guards and lanes with jobs.
WITH RECURSIVE {part:lanes_with_jobs}
SELECT 'now', NULL, NULL, :now, NULL, NULL, NULL
UNION ALL SELECT 'gate', scope, key, since, until, reason, actor FROM {p}gate
UNION ALL SELECT 'limit', scope, key, concurrency, until, CAST(rate AS text), NULL FROM {p}limits
UNION ALL SELECT 'guard', scope, key, version, NULL, body, NULL FROM {p}guard WHERE active
UNION ALL SELECT 'lane', lane, NULL, priority, run_at, NULL, NULL FROM found WHERE place > 0

-- name: list_known_lanes
-- Read the first run_at of lanes and priorities. Those without queued jobs are left out.
SELECT lane, priority, first FROM (
  SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS priority,
    (SELECT run_at FROM {p}job WHERE state = 'queued' AND lane = json_extract(value, '$[0]')
       AND priority = json_extract(value, '$[1]') ORDER BY run_at LIMIT 1) AS first
  FROM json_each(:lanes)
) WHERE first IS NOT NULL

-- name: list_ready_lanes
-- List the lanes of jobs that became ready within a time, the first ones first.
SELECT lane, priority, ready_at FROM {p}job INDEXED BY {p}job_for_ready
WHERE state = 'queued' AND ready_at > :since AND ready_at <= :until ORDER BY ready_at LIMIT :limit

-- name: list_due_jobs
-- List the next due jobs of one lane and priority.
-- One range scan of job_for_claim: jobs that are due later are never read.
SELECT priority, run_at, id, lane FROM {p}job
WHERE state = 'queued' AND lane = :lane AND priority = :priority AND run_at <= :now
  AND (deadline_at IS NULL OR deadline_at > :now)
ORDER BY run_at, id LIMIT :depth
