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
