-- Statements about jobs, their attempts, and searches, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: find_jobs_by_key
-- Find jobs whose unique key starts with a prefix.
SELECT id FROM {p}job
WHERE unique_key IS NOT NULL AND substr(unique_key, 1, 200) COLLATE "C" >= :first AND substr(unique_key, 1, 200) COLLATE "C" < :last
  AND starts_with(unique_key, :prefix)
ORDER BY substr(unique_key, 1, 200) COLLATE "C" LIMIT :limit

-- name: get_latest_attempts
-- Read the latest attempt of each job, or the latest that failed.
(
  SELECT DISTINCT ON (job_id) {AttemptRow} FROM {p}attempt
  WHERE job_id = ANY (CAST(:ids AS text[])) AND (NOT CAST(:failed AS boolean) OR code IS NOT NULL)
  ORDER BY job_id, token DESC
)
UNION ALL {part:first_attempt_row} AND id = ANY (CAST(:ids AS text[])) AND NOT CAST(:failed AS boolean)

-- name: request_cancel
-- Request that a running job be cancelled, and notify workers so that its own acts at once.
WITH requested AS (
  UPDATE {p}job SET cancel_reason = :reason
  WHERE id = :id AND token = :token AND state = 'running' AND cancel_reason IS NULL RETURNING id
)
SELECT id, pg_notify(CAST(:channel AS text), '') FROM requested

-- name: list_prunable_jobs
-- Lock finished jobs that retention may remove. Members leave with their batch.
SELECT id, kind, state, owner, error FROM {p}job
WHERE state = :state AND finished_at IS NOT NULL AND finished_at < :before AND batch_id IS NULL
  AND (CAST(:kind AS text) IS NULL OR kind = :kind) AND NOT (kind = ANY (CAST(:except_kinds AS text[])))
ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: list_jobs_sparse
-- Read a page of matching jobs that will not be full, newest first.
SELECT {JobRow} FROM {p}job
WHERE {matching} AND id < :before AND id >= :floor
ORDER BY id DESC LIMIT :limit

-- name: write_args
-- Store indexed arguments of jobs.
INSERT INTO {p}job_arg (name, value, job_id, kind) SELECT name, value, job_id, kind FROM {set:ArgRow}
ON CONFLICT (name, value, job_id) DO NOTHING

-- fragment: queued_events
-- Select the job.queued events of jobs.
SELECT created_at AS at, 'job.queued' AS type, id AS job_id, batch_id, owner, NULL::bigint AS attempt, NULL::bigint AS token,
  format('{"kind": %s, "queue": %s, "run_at": %s}', to_json(kind), to_json(queue), run_at) AS data

-- name: insert_jobs
-- Insert jobs with their job.queued events, and notify the queues of due jobs.
-- A job whose unique key is held is not inserted: the count is lower, and the caller looks up the holder.
-- OFFSET 0: the clock is read once, not for each row and column.
WITH fresh AS (
  INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, ready_at, created_at, deadline_at, deadline_span,
                      announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                      batch_id, must_have, trace, version, payload)
  SELECT id, kind, queue, owner, priority,
         queue || '|' || kind || '|' || uses || '|' || CASE share WHEN '' THEN '' ELSE share || '|' END || '0',
         uses, COALESCE(run_at, now + delay), GREATEST(COALESCE(run_at, now + delay), now), now, COALESCE(deadline_at, now + deadline),
         COALESCE(deadline, deadline_at - now), CAST(:announce AS boolean), max_retries, policy, timeout,
         unique_key, unique_hash, unique_cover, now + unique_for, batch_id, must_have, trace, version, payload
  FROM {set:NewJob} CROSS JOIN (SELECT {p}now_us() AS now OFFSET 0) AS clock
  {if:unique_hash} ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING {end}
  RETURNING id, queue, kind, owner, batch_id, run_at, created_at
), events AS (
  {part:queued_events}
  FROM fresh WHERE CAST(:announce AS boolean)
), {part:write_events}
{part:notify_new_jobs}

-- fragment: notify_new_jobs
-- Return the number of the jobs `fresh` and their time, and notify each queue that has a due job once.
SELECT count(*), min(created_at), (SELECT n FROM logged), CASE WHEN CAST(:channel AS text) IS NOT NULL THEN (
  SELECT count(pg_notify(:channel, queue)) FROM (SELECT DISTINCT queue FROM fresh WHERE run_at <= created_at) AS due
) END FROM fresh

-- fragment: notify_new_jobs_single
-- Return a row if the job `fresh` was inserted, and notify its queue if it is due.
SELECT 1, created_at, CASE WHEN run_at <= created_at AND CAST(:channel AS text) IS NOT NULL THEN pg_notify(:channel, queue) END
FROM fresh

-- name: announce_jobs
-- Write the job.queued events of jobs that were inserted in callers' transactions.
-- SKIP LOCKED: several workers may do this at once, each for other jobs.
-- The transaction that inserted them may have been open for long: ready since now, so that claims find them.
WITH unannounced AS MATERIALIZED (
  SELECT id AS unannounced_id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
), announced_jobs AS (
  UPDATE {p}job SET announced = true, ready_at = GREATEST(ready_at, {p}now_us()) FROM unannounced WHERE id = unannounced_id
  RETURNING id, batch_id, owner, kind, queue, run_at, created_at
), events AS (
  {part:queued_events}
  FROM announced_jobs
), {part:write_events}
SELECT id FROM announced_jobs WHERE (SELECT n FROM logged) > 0
