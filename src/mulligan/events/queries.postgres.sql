-- Statements about the event log, its readers, and statistics, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: last_event_id
-- Read the last event id that was drawn, committed or not.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {p}event_id_seq

-- name: lowest_open_event_mark
-- Find the lowest mark of transactions that are still writing events. All their ids are above it.
SELECT min(((CAST(classid AS bigint) << 32) | CAST(objid AS bigint)) - {p}event_lock_base())
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ((CAST(classid AS bigint) << 32) | CAST(objid AS bigint)) >> 48 = {p}event_lock_base() >> 48

-- name: event_lag
-- Measure how long the oldest transaction that is still writing events has been open.
SELECT coalesce(CAST(max(extract(epoch FROM clock_timestamp() - a.xact_start)) * 1000000 AS BIGINT), 0)
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) >> 48 = {p}event_lock_base() >> 48

-- name: list_idle_transactions
-- List transactions that are open and idle for longer than :seconds: they keep VACUUM from cleaning.
SELECT pid, coalesce(usename, ''), coalesce(application_name, ''), extract(epoch FROM clock_timestamp() - state_change)
FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()
  AND state_change < clock_timestamp() - make_interval(secs => :seconds)
ORDER BY xact_start LIMIT 5

-- name: list_events_of_jobs
-- Read the events of jobs: single events by job, bundles by the times at which the jobs changed.
WITH moments AS MATERIALIZED (
  SELECT created_at AS at FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
  UNION SELECT started_at FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
  UNION SELECT finished_at FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
  UNION SELECT started_at FROM {p}attempt WHERE job_id = ANY (CAST(:ids AS text[]))
  UNION SELECT ended_at FROM {p}attempt WHERE job_id = ANY (CAST(:ids AS text[]))
)
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE job_id = ANY (CAST(:ids AS text[]))
UNION ALL
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE bundle IS NOT NULL AND at = ANY (ARRAY(SELECT at FROM moments))

-- name: list_audit_events
-- List actions of people, newest first. The first condition must equal that of event_for_audit.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event
WHERE {part:is_audit_event}
  AND (CAST(:actor AS text) IS NULL OR actor = CAST(:actor AS text))
  AND (CAST(:owner AS text) IS NULL OR owner = CAST(:owner AS text))
  AND (CAST(:job_id AS text) IS NULL OR job_id = CAST(:job_id AS text))
  AND (CAST(:since AS bigint) IS NULL OR at >= CAST(:since AS bigint))
  AND (CAST(:until AS bigint) IS NULL OR at < CAST(:until AS bigint))
  AND (CAST(:before AS bigint) IS NULL OR id < CAST(:before AS bigint))
  AND (CAST(:all_types AS boolean) OR type = ANY (CAST(:types AS text[])))
ORDER BY id DESC LIMIT :limit

-- name: lock_reader
-- Lock and read the position of a consumer of the event log until its work is committed.
-- SKIP LOCKED: only one worker consumes at a time; the others do not wait.
-- The idle timeout frees the lock if that worker hangs.
SELECT {ReaderRow}, set_config('idle_in_transaction_session_timeout', '10s', true)
FROM {p}reader WHERE name = :name FOR UPDATE SKIP LOCKED

-- name: count_queued_events
-- Count job.queued events by minute, kind and queue.
-- They differ only in run_at, so the text before it identifies kind and queue.
SELECT min(at), 'job.queued', NULL, max(data), count(*) FROM {p}event
WHERE id > :cursor AND id <= :top AND bundle IS NULL AND type = 'job.queued'
GROUP BY at / 60000000, CASE WHEN strpos(data, '"run_at"') > 0 THEN left(data, strpos(data, '"run_at"')) ELSE data END

-- name: write_stats
-- Add to statistics. Sorted by key, so that two writers lock rows in the same order.
INSERT INTO {p}stat AS known ({StatRow})
SELECT {StatRow} FROM {set:StatRow} ORDER BY minute, name COLLATE "C", labels COLLATE "C"
ON CONFLICT (minute, name, labels) DO UPDATE SET n = known.n + excluded.n, total = known.total + excluded.total

-- fragment: write_events
-- Write the rows of `events` to the event table, bundled where possible.
-- The outer query must read `n`: PostgreSQL skips a CTE that nothing refers to.
logged AS (
  SELECT {p}write_events(array_agg(at), array_agg(type), array_agg(job_id), array_agg(batch_id), array_agg(owner),
                 array_agg(attempt), array_agg(token), array_agg(data)) AS n
  FROM events
)

-- fragment: write_events_single
-- Write the one row of `events` to the event table.
-- The subquery runs mark_events before the id is drawn, so that readers wait for the commit.
logged AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, type, job_id, batch_id, owner, attempt, token, data
  FROM (SELECT events.*, {p}mark_events() AS mark FROM events) AS marked
  RETURNING 1 AS n
)

-- name: write_event
-- Write one event.
-- mark_events must run before the id is drawn, so that readers wait for the commit.
WITH mark AS MATERIALIZED (SELECT {p}mark_events() AS marked)
INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, actor, data)
SELECT {p}now_us(), :type, :job_id, :batch_id, :owner, CAST(:attempt AS integer), CAST(:token AS bigint), :actor, :data
FROM mark
