-- Statements about gates, limits and guards, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: count_running
-- Count running jobs by queue and dependencies.
SELECT queue, uses, count(*) FROM {p}job WHERE state = 'running' GROUP BY queue, uses

-- name: list_running_groups
-- Count running jobs by worker, queue and kind, with the start of the first.
SELECT worker, queue, kind, count(*), min(started_at) FROM {p}job WHERE state = 'running'
GROUP BY worker, queue, kind ORDER BY 4 DESC, 1, 2, 3 LIMIT :limit

-- name: count_waiting_by_lane
-- Count the queued jobs of every lane: due now, and due later. Counting stops at the cap.
WITH RECURSIVE {part:lanes_with_jobs}
SELECT lane, run_at,
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS due WHERE due.state = 'queued' AND due.lane = found.lane
                         AND due.priority = found.priority AND due.run_at <= :at_time LIMIT :cap) AS few),
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS later WHERE later.state = 'queued' AND later.lane = found.lane
                         AND later.priority = found.priority AND later.run_at > :at_time LIMIT :cap) AS few)
FROM found WHERE place > 0

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
-- `since` skips the index entries of jobs that were claimed recently, which are many if jobs are short.
wanted CROSS JOIN LATERAL (
  SELECT job.priority, job.run_at, job.id, job.lane FROM {p}job AS job
  WHERE job.state = 'queued' AND job.lane = wanted.lane AND job.priority = CAST(wanted.priority AS integer)
    AND job.run_at >= wanted.since AND job.run_at <= {p}now_us() AND (job.deadline_at IS NULL OR job.deadline_at > {p}now_us())
  ORDER BY job.run_at, job.id LIMIT :depth
) AS due

-- fragment: lanes_with_jobs
-- List lanes and priorities that have queued jobs, with the first run_at, behind a position.
-- A recursive query makes one index probe per lane and priority, however many jobs there are.
-- The first row is the position; `place` bounds the recursion, whatever else reads its rows.
found AS (
  SELECT CAST(:after_lane AS text) COLLATE "C" AS lane, CAST(:after_priority AS integer) AS priority,
         CAST(NULL AS bigint) AS run_at, 0 AS place
  UNION ALL
  SELECT nxt.lane, nxt.priority, nxt.run_at, found.place + 1
  FROM found CROSS JOIN LATERAL (
    SELECT lane, priority, run_at FROM {p}job
    WHERE state = 'queued' AND (lane, priority) > (found.lane, found.priority)
    ORDER BY lane, priority, run_at LIMIT 1
  ) AS nxt
  WHERE found.place < :max_lanes
)

-- fragment: claim_context
-- What every claim must know: clock, gates, limits, active guards, and the lanes in `found`.
SELECT 'now', NULL, NULL, {p}now_us(), NULL, NULL, NULL
UNION ALL SELECT 'gate', scope, key, since, until, reason, actor FROM {p}gate
UNION ALL SELECT 'limit', scope, key, concurrency, until, CAST(rate AS text), NULL FROM {p}limits
UNION ALL SELECT 'guard', scope, key, version, NULL, body, NULL FROM {p}guard WHERE active
UNION ALL SELECT 'lane', lane, NULL, priority, run_at, NULL, NULL FROM found WHERE place > 0

-- name: read_claim_state
-- Read everything a claim must know: clock, gates, limits, active guards and lanes with jobs.
-- Also read the due jobs of the lanes that this worker expects to be due.
WITH RECURSIVE {part:lanes_with_jobs}, wanted AS (
  SELECT found.lane, found.priority, found.run_at AS since FROM found
  JOIN unnest(CAST(:lanes AS text[]), CAST(:priorities AS bigint[])) AS expected(lane, priority)
    ON expected.lane = found.lane AND expected.priority = found.priority
  WHERE found.place > 0
)
{part:claim_context}
UNION ALL SELECT 'job', due.lane, due.id, due.priority, due.run_at, NULL, NULL FROM {part:due_jobs}

-- name: read_claim_state_partly
-- Read what a claim must know if there are too many lanes to read all of them: those behind a
-- position, those that this worker knows, and those of jobs that have become ready or will next.
-- Also read the due jobs of the first :expected known lanes.
WITH RECURSIVE {part:lanes_with_jobs}, known AS MATERIALIZED (
  SELECT listed.lane COLLATE "C" AS lane, listed.priority, listed.place, first_job.run_at
  FROM unnest(CAST(:lanes AS text[]), CAST(:priorities AS bigint[])) WITH ORDINALITY AS listed(lane, priority, place)
  CROSS JOIN LATERAL (
    SELECT run_at FROM {p}job
    WHERE state = 'queued' AND lane = listed.lane AND priority = CAST(listed.priority AS integer)
    ORDER BY lane, priority, run_at LIMIT 1
  ) AS first_job
), wanted AS (
  SELECT lane, priority, run_at AS since FROM known WHERE place <= :expected
)
{part:claim_context}
UNION ALL SELECT 'known', lane, NULL, priority, run_at, NULL, NULL FROM known
UNION ALL (SELECT 'ready', lane, NULL, priority, ready_at, NULL, NULL FROM {p}job
           WHERE state = 'queued' AND ready_at > 0 AND ready_at > :ready_since AND ready_at <= {p}now_us()
           ORDER BY ready_at LIMIT :max_ready)
UNION ALL (SELECT 'upcoming', lane, NULL, priority, ready_at, NULL, NULL FROM {p}job
           WHERE state = 'queued' AND ready_at > 0 AND ready_at > {p}now_us() ORDER BY ready_at LIMIT :max_upcoming)
UNION ALL SELECT 'job', due.lane, due.id, due.priority, due.run_at, NULL, NULL FROM {part:due_jobs}

-- name: list_due_jobs
-- List the next due jobs of lanes. Nothing is locked: the claim locks and checks again.
WITH wanted AS (
  SELECT lane, priority, 0 AS since
  FROM unnest(CAST(:lanes AS text[]), CAST(:priorities AS bigint[])) AS listed(lane, priority)
)
SELECT due.priority, due.run_at, due.id, due.lane FROM {part:due_jobs}
