-- Statements about the event log, its readers, and statistics, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: last_event_id
-- Read the highest event id.
SELECT coalesce(max(id), 0) FROM {p}event

-- name: list_events_of_jobs
-- Read the events of jobs: single events by job, bundles by the times at which the jobs changed.
WITH wanted (id) AS (SELECT value FROM json_each(:ids))
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE job_id IN (SELECT id FROM wanted)
UNION ALL
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE bundle IS NOT NULL AND at IN (
  SELECT created_at FROM {p}job WHERE id IN (SELECT id FROM wanted)
  UNION SELECT started_at FROM {p}job WHERE id IN (SELECT id FROM wanted)
  UNION SELECT finished_at FROM {p}job WHERE id IN (SELECT id FROM wanted)
  UNION SELECT started_at FROM {p}attempt WHERE job_id IN (SELECT id FROM wanted)
  UNION SELECT ended_at FROM {p}attempt WHERE job_id IN (SELECT id FROM wanted))

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
  AND (:all_types OR type IN (SELECT value FROM json_each(:types)))
ORDER BY id DESC LIMIT :limit

-- name: lock_reader
-- Read the position of a consumer of the event log.
SELECT {ReaderRow} FROM {p}reader WHERE name = :name

-- name: count_queued_events
-- Count job.queued events by minute, kind and queue.
-- They differ only in run_at, so the text before it identifies kind and queue.
SELECT min(at), type, NULL, max(data), count(*) FROM {p}event
WHERE id > :cursor AND id <= :top AND bundle IS NULL AND type = 'job.queued'
GROUP BY at / 60000000, CASE WHEN instr(data, '"run_at"') > 0 THEN substr(data, 1, instr(data, '"run_at"')) ELSE data END

-- name: write_stats
-- Add to the statistics of a minute.
INSERT INTO {p}stat AS known ({StatRow}) VALUES (:minute, :name, :labels, :n, :total)
ON CONFLICT (minute, name, labels) DO UPDATE SET n = known.n + excluded.n, total = known.total + excluded.total

-- name: write_event
-- Write one event.
INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, actor, data)
VALUES (:now, :type, :job_id, :batch_id, :owner, :attempt, :token, :actor, :data)

-- name: write_job_event
-- Write one event of a job.
INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
VALUES (:at, :type, :job_id, :batch_id, :owner, :attempt, :token, :data)

-- name: write_event_bundle
-- Write a bundle of events.
-- sqlite_sequence holds the highest id ever used, so that ids of deleted events are not used again.
INSERT INTO {p}event (id, at, type, bundle, data)
VALUES ((SELECT COALESCE(max(seq), 0) FROM sqlite_sequence WHERE name = '{p}event') + :bundle, :at, :type, :bundle, :data)
