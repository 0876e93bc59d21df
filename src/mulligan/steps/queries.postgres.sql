-- Statements about durable steps and checkpoints, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: save_steps
-- Save steps of attempts that still hold their leases, with the events of finished ones.
-- A saved step resets the losses of its job: it makes progress between losses.
-- The row lock keeps the lease from being declared lost before the commit.
-- NO KEY UPDATE: the attempt may be adding members in another transaction, which holds KEY SHARE
-- (holds_lease). With a stronger lock the attempt would wait for itself.
-- The caller sorts the set by id, so transactions cannot deadlock. Its names are distinct.
-- `mark` runs before the ids of events are drawn, so that readers wait for the commit.
WITH fenced AS MATERIALIZED (
  SELECT i.*, held.* FROM {set:StepWrite}, LATERAL (
    SELECT worker AS holder, token AS fence, state AS job_state, attempt, owner, batch_id, losses, (SELECT {p}now_us()) AS at
    FROM {p}job WHERE id = i.id FOR NO KEY UPDATE OFFSET 0
  ) AS held
  WHERE holder = i.worker AND fence = i.token AND job_state = 'running'
), saved AS (
  INSERT INTO {p}step (job_id, name, kind, state, number, value, detail, token, started_at, ended_at)
  SELECT id, name, kind, state, number, value, detail, token, at - took,
         CASE WHEN state NOT IN ('running', 'waiting') THEN at END
  FROM fenced
  ON CONFLICT (job_id, name) DO UPDATE SET kind = excluded.kind, state = excluded.state, number = excluded.number,
    value = excluded.value, detail = excluded.detail, token = excluded.token, started_at = excluded.started_at,
    ended_at = excluded.ended_at, actor = ''
  WHERE {part:replaces_step}
  RETURNING job_id, name
), noted AS (
  UPDATE {p}job SET losses = 0, settings = COALESCE(changed.settings, job.settings)
  FROM (
    SELECT id, max(fenced.settings) AS settings FROM fenced JOIN saved ON job_id = id AND saved.name = fenced.name
    WHERE losses > 0 OR fenced.settings IS NOT NULL GROUP BY id
  ) AS changed
  WHERE job.id = changed.id
), mark AS MATERIALIZED (SELECT {p}mark_events() AS marked WHERE EXISTS (SELECT 1 FROM fenced WHERE data IS NOT NULL)), logged AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, 'job.step_finished', id, batch_id, owner, attempt, token, data
  FROM mark CROSS JOIN fenced JOIN saved ON job_id = id AND saved.name = fenced.name
  WHERE data IS NOT NULL
)
SELECT job_id, name FROM saved

-- name: save_failed_steps
-- Save steps that failed, in the transaction that settles their attempts. A result stands.
INSERT INTO {p}step (job_id, name, kind, state, number, detail, token, started_at, ended_at)
SELECT id, name, 'step', 'failed', number, detail, token, {p}now_us() - took, {p}now_us() FROM {set:FailedStep}
ON CONFLICT (job_id, name) DO UPDATE SET {part:failed_columns}
