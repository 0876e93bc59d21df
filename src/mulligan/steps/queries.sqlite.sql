-- Statements about durable steps and checkpoints, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: save_steps
-- Save a step, if the attempt still holds its lease.
INSERT INTO {p}step (job_id, name, kind, state, number, value, detail, token, started_at, ended_at)
SELECT id, :name, :kind, :state, :number, :value, :detail, token, :now - :took,
       CASE WHEN :state NOT IN ('running', 'waiting') THEN :now END
FROM {p}job WHERE id = :id AND worker = :worker AND token = :token AND state = 'running'
ON CONFLICT (job_id, name) DO UPDATE SET kind = excluded.kind, state = excluded.state, number = excluded.number,
  value = excluded.value, detail = excluded.detail, token = excluded.token, started_at = excluded.started_at,
  ended_at = excluded.ended_at, actor = ''
WHERE {part:replaces_step}
RETURNING job_id, name

-- name: note_step
-- Reset the losses of a job whose attempt saved a step: it makes progress between losses.
UPDATE {p}job SET losses = 0, settings = COALESCE(:settings, settings)
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND (losses > 0 OR :settings IS NOT NULL)

-- name: save_failed_steps
-- Save a step that failed, in the transaction that settles its attempt. A result stands.
INSERT INTO {p}step (job_id, name, kind, state, number, detail, token, started_at, ended_at)
VALUES (:id, :name, 'step', 'failed', :number, :detail, :token, :now - :took, :now)
ON CONFLICT (job_id, name) DO UPDATE SET {part:failed_columns}
