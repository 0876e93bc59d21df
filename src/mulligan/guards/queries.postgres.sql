-- Statements about gates, limits and guards, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: count_running
-- Count running jobs by queue and dependencies.
SELECT queue, uses, count(*) FROM {p}job WHERE state = 'running' GROUP BY queue, uses

-- name: count_waiting_by_lane
-- Count the queued jobs of every lane: due now, and due later. Counting stops at the cap.
WITH RECURSIVE {part:lanes_with_jobs}
SELECT lane, run_at,
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS due WHERE due.state = 'queued' AND due.lane = found.lane
                         AND due.priority = found.priority AND due.run_at <= :at_time LIMIT :cap) AS few),
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS later WHERE later.state = 'queued' AND later.lane = found.lane
                         AND later.priority = found.priority AND later.run_at > :at_time LIMIT :cap) AS few)
FROM found LIMIT :limit

-- name: take_tallies
-- Take and delete the tallies of one guard, in the order in which they were written.
WITH taken AS (DELETE FROM {p}tally WHERE scope = :scope AND key = :key RETURNING id, body)
SELECT body FROM taken ORDER BY id

-- name: find_last_success
-- Find the newest success of a kind among the newest successes. Reading stops at the first match.
SELECT finished_at FROM (
  SELECT kind, finished_at FROM {p}job WHERE state = 'succeeded' AND finished_at IS NOT NULL
  ORDER BY finished_at DESC LIMIT :limit
) AS newest
WHERE kind = :kind ORDER BY finished_at DESC LIMIT 1

-- name: find_nth_success
-- Find when the n-th newest success was.
SELECT finished_at FROM {p}job WHERE state = 'succeeded' AND finished_at IS NOT NULL
ORDER BY finished_at DESC LIMIT 1 OFFSET :n

-- name: insert_token_buckets
-- Insert the token buckets that do not exist. A new bucket is full: its last refill lies at time 0.
-- NOT EXISTS: ON CONFLICT alone would wait for a claim that is changing an existing bucket.
INSERT INTO {p}meter (scope, key, tokens, at)
SELECT scope, key, 0, 0 FROM unnest(CAST(:scopes AS text[]), CAST(:keys AS text[])) AS missing(scope, key)
WHERE NOT EXISTS (SELECT FROM {p}meter AS meter WHERE meter.scope = missing.scope AND meter.key = missing.key)
ORDER BY scope, key
ON CONFLICT (scope, key) DO NOTHING RETURNING scope, key

-- name: lock_token_buckets
-- Lock and read token buckets until the claim is committed, so that claims count each other.
-- SKIP LOCKED: a locked bucket counts as empty for now. The idle timeout frees the lock if a worker
-- hangs.
SELECT scope, key, tokens, at, {p}now_us(), set_config('idle_in_transaction_session_timeout', '10s', true)
FROM {p}meter WHERE (scope, key) IN (SELECT * FROM unnest(CAST(:scopes AS text[]), CAST(:keys AS text[])))
ORDER BY scope, key FOR UPDATE SKIP LOCKED

-- name: update_token_buckets
-- Store the tokens that are left in locked buckets.
UPDATE {p}meter AS meter SET tokens = spent.tokens, at = spent.at
FROM unnest(CAST(:scopes AS text[]), CAST(:keys AS text[]), CAST(:tokens AS double precision[]), CAST(:times AS bigint[]))
  AS spent(scope, key, tokens, at)
WHERE meter.scope = spent.scope AND meter.key = spent.key

-- fragment: due_jobs
-- The first due jobs of the lanes in `wanted`, at most :depth of each (lane, priority).
-- One range scan of job_for_claim per lane and priority: jobs that are due later are never read.
-- `since` skips the index entries of jobs that were claimed lately, which are many if jobs are short.
wanted CROSS JOIN LATERAL (
  SELECT job.priority, job.run_at, job.id, job.lane FROM {p}job AS job
  WHERE job.state = 'queued' AND job.lane = wanted.lane AND job.priority = CAST(wanted.priority AS integer)
    AND job.run_at >= wanted.since AND job.run_at <= {p}now_us() AND (job.deadline_at IS NULL OR job.deadline_at > {p}now_us())
  ORDER BY job.run_at, job.id LIMIT :depth
) AS due

-- fragment: lanes_with_jobs
-- List every lane and priority that has queued jobs, with the first run_at.
-- A recursive query makes one index probe per lane and priority, however many jobs there are.
found AS (
  (SELECT lane, priority, run_at FROM {p}job WHERE state = 'queued' ORDER BY lane, priority, run_at LIMIT 1)
  UNION ALL
  SELECT nxt.lane, nxt.priority, nxt.run_at
  FROM found CROSS JOIN LATERAL (
    SELECT lane, priority, run_at FROM {p}job
    WHERE state = 'queued' AND (lane, priority) > (found.lane, found.priority)
    ORDER BY lane, priority, run_at LIMIT 1
  ) AS nxt
)

-- name: read_claim_state
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

-- name: list_due_jobs
-- List the next due jobs of lanes. Nothing is locked: the claim locks and checks again.
WITH wanted AS (
  SELECT lane, priority, 0 AS since
  FROM unnest(CAST(:lanes AS text[]), CAST(:priorities AS bigint[])) AS listed(lane, priority)
)
SELECT due.priority, due.run_at, due.id, due.lane FROM {part:due_jobs}
