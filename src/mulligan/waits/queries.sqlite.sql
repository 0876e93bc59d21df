-- Statements about jobs that wait without a slot, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: insert_waits
-- Write the step of a wait, unless its answer has come first or it has begun before.
INSERT INTO {p}step (job_id, name, kind, state, number, value, detail, token, started_at, ended_at)
VALUES (:id, :name, :kind, 'waiting', :number, NULL, :detail, :token, :now, NULL)
ON CONFLICT (job_id, name) DO NOTHING

-- name: mark_waiting
-- Note in a job what it waits for. If that is over, the job is due now.
-- The first start is forgotten: the age of a job (max_age) counts from the end of its last wait.
UPDATE {p}job SET first_started_at = NULL,
  waits = CASE WHEN is_over THEN NULL ELSE :waits END,
  run_at = CASE WHEN is_over THEN :now ELSE run_at END,
  ready_at = CASE WHEN is_over THEN :now ELSE ready_at END
FROM (SELECT EXISTS (SELECT 1 FROM {p}step WHERE job_id = :id AND name = :name AND state <> 'waiting') AS is_over) AS found
WHERE id = :id

-- name: wake_job
-- Make a waiting job due.
UPDATE {p}job SET waits = NULL, run_at = :now, ready_at = :now
WHERE id = :id AND state = 'queued' AND waits IS NOT NULL
