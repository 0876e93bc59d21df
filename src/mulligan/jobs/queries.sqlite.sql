-- Statements about jobs, their attempts, and searches, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: find_jobs_by_key
-- Find jobs whose unique key starts with a prefix.
SELECT id FROM {p}job
WHERE unique_key IS NOT NULL AND unique_key >= :prefix AND unique_key < :upper ORDER BY unique_key LIMIT :limit

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
