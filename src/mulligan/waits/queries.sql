-- Statements about jobs that wait without a slot.
-- The macros are explained in storage/statements.py.

-- name: lock_waiting_job
-- Read a job and lock it: whoever writes an answer decides under this lock.
-- NO KEY UPDATE: an attempt that saves a step holds the same lock for as short a time.
SELECT {JobRow} FROM {p}job WHERE id = :id {lock:FOR NO KEY UPDATE}

-- name: get_step
-- Read one step of a job.
SELECT {StepRow} FROM {p}step WHERE job_id = :id AND name = :name

-- name: write_answer
-- Write the answer to a wait. The caller has locked the job and found no answer.
INSERT INTO {p}step (job_id, name, kind, state, number, value, detail, token, started_at, ended_at, actor)
VALUES (:id, :name, 'wait', 'done', (SELECT COALESCE(max(number), 0) + 1 FROM {p}step WHERE job_id = :id), :value, '{}',
        :token, :now, :now, :actor)
ON CONFLICT (job_id, name) DO UPDATE SET state = 'done', value = excluded.value, ended_at = excluded.ended_at,
  actor = excluded.actor

-- name: write_children
-- Write how child jobs ended into the step that waits for them. The caller has locked the job.
UPDATE {p}step SET state = :state, value = :value, ended_at = :now, actor = :actor
WHERE job_id = :id AND name = :name AND token = :token AND kind = 'call' AND state <> 'done'

-- name: find_jobs_to_tell
-- Find the jobs with a unique key that have not ended for good.
SELECT id FROM {p}job
WHERE unique_key IS NOT NULL AND substr(unique_key, 1, 200) = substr(:key, 1, 200) AND unique_key = :key
  AND state IN ('queued', 'running', 'parked', 'dead') AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)
ORDER BY id LIMIT 10
