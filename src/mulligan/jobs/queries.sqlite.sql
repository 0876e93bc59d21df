-- Statements about jobs, their attempts, and searches, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: find_jobs_by_key
-- Find jobs whose unique key starts with a prefix.
SELECT id FROM {p}job
WHERE unique_key IS NOT NULL AND substr(unique_key, 1, 200) >= :first AND substr(unique_key, 1, 200) < :last
  AND substr(unique_key, 1, length(:prefix)) = :prefix
ORDER BY substr(unique_key, 1, 200) LIMIT :limit

-- name: get_latest_attempts
-- Read the latest attempt of each job, or the latest that failed.
-- CROSS JOIN makes SQLite start from the ids; with IN it would scan all attempts.
SELECT {AttemptRow} FROM json_each(:ids) AS wanted
CROSS JOIN {p}attempt ON job_id = wanted.value AND token = (
  SELECT other.token FROM {p}attempt AS other
  WHERE other.job_id = wanted.value AND (NOT :failed OR other.code IS NOT NULL)
  ORDER BY other.token DESC LIMIT 1)
UNION ALL {part:first_attempt_row} AND id IN (SELECT value FROM json_each(:ids)) AND NOT :failed

-- name: request_cancel
-- Request that a running job be cancelled.
UPDATE {p}job SET cancel_reason = :reason
WHERE id = :id AND token = :token AND state = 'running' AND cancel_reason IS NULL RETURNING id

-- name: list_prunable_jobs
-- Find finished jobs that retention may remove. Members leave with their batch.
SELECT id, kind, state, owner, error FROM {p}job
WHERE state = :state AND finished_at IS NOT NULL AND finished_at < :before AND batch_id IS NULL
  AND (:kind IS NULL OR kind = :kind) AND kind NOT IN (SELECT value FROM json_each(:except_kinds))
ORDER BY finished_at LIMIT :limit

-- name: list_jobs_sparse
-- Read a page of matching jobs that will not be full, newest first.
-- The subquery reads rows forwards, in half the time, and sorts only the matches.
SELECT {JobRow} FROM {p}job
WHERE id IN (SELECT id FROM {p}job WHERE {matching} AND id < :before AND id >= :floor)
ORDER BY id DESC LIMIT :limit

-- name: write_args
-- Store an indexed argument of a job.
INSERT INTO {p}job_arg (name, value, job_id, kind) VALUES (:name, :value, :job_id, :kind)
ON CONFLICT (name, value, job_id) DO NOTHING

-- name: insert_jobs
-- Insert one job of a set. If its unique key is held, no row changes and the caller looks up the holder.
INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, ready_at, created_at, deadline_at, deadline_span,
                    announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                    batch_id, must_have, trace, version, payload)
VALUES (:id, :kind, :queue, :owner, :priority,
        :queue || '|' || :kind || '|' || :uses || '|' || CASE :share WHEN '' THEN '' ELSE :share || '|' END || '0',
        :uses, COALESCE(:run_at, :now + :delay), max(COALESCE(:run_at, :now + :delay), :now), :now, COALESCE(:deadline_at, :now + :deadline),
        COALESCE(:deadline, :deadline_at - :now), :announce, :max_retries, :policy, :timeout,
        :unique_key, :unique_hash, :unique_cover, :now + :unique_for, :batch_id, :must_have, :trace, :version, :payload)
ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING

-- name: write_queued_event
-- Write the job.queued event of one new job.
INSERT INTO {p}event (at, type, job_id, batch_id, owner, data)
VALUES (:now, 'job.queued', :id, :batch_id, :owner,
        json_object('kind', :kind, 'queue', :queue, 'run_at', COALESCE(:run_at, :now + :delay)))

-- name: list_existing_ids
-- List those of these jobs that exist.
SELECT id FROM {p}job WHERE id IN (SELECT value FROM json_each(:ids))

-- name: announce_jobs
-- Mark inserted jobs as announced and return what their job.queued events need.
-- The transaction that inserted them may have been open for long: ready since now, so that claims find them.
UPDATE {p}job SET announced = 1, ready_at = max(ready_at, :now) WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id, batch_id, owner, kind, queue, run_at, created_at

-- name: list_unannounced
-- Find jobs of callers' transactions whose job.queued event is not written yet.
SELECT id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :limit
