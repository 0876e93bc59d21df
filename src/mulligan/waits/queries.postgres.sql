-- Statements about jobs that wait without a slot, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: insert_waits
-- Write the steps of waits, unless their answers have come first or they have begun before.
INSERT INTO {p}step (job_id, name, kind, state, number, value, detail, token, started_at, ended_at)
SELECT id, name, kind, 'waiting', number, NULL, detail, token, {p}now_us(), NULL FROM {set:WaitRow}
ON CONFLICT (job_id, name) DO NOTHING

-- name: mark_waiting
-- Note in jobs what they wait for. If that is over, the job is due now.
-- The settlement before has locked the jobs, and whoever writes an answer locks the job first. So an
-- answer is either seen here, or it sees the waiting job and wakes it.
-- The first start is forgotten: the age of a job (max_age) counts from the end of its last wait.
UPDATE {p}job SET first_started_at = NULL,
  waits = CASE WHEN NOT is_over THEN i.waits END,
  run_at = CASE WHEN is_over THEN at ELSE run_at END,
  ready_at = CASE WHEN is_over THEN at ELSE ready_at END
FROM {set:WaitRow}, LATERAL (
  SELECT (SELECT {p}now_us()) AS at,
    EXISTS (SELECT 1 FROM {p}step WHERE job_id = i.id AND step.name = i.name AND state <> 'waiting') AS is_over
) AS found
WHERE job.id = i.id

-- name: wake_job
-- Make a waiting job due, and notify the workers of its queue.
WITH woken AS (
  UPDATE {p}job SET waits = NULL, run_at = {p}now_us(), ready_at = {p}now_us()
  WHERE id = :id AND state = 'queued' AND waits IS NOT NULL RETURNING queue
)
SELECT pg_notify(CAST(:channel AS text), queue) FROM woken
