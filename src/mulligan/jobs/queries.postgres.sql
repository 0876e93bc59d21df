-- Statements about jobs, their attempts, and searches, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: find_jobs_by_key
-- Find jobs whose unique key starts with a prefix.
SELECT id FROM {p}job
WHERE unique_key IS NOT NULL AND unique_key COLLATE "C" >= :prefix AND unique_key COLLATE "C" < :upper
ORDER BY unique_key COLLATE "C" LIMIT :limit

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
