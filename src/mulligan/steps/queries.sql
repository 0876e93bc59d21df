-- Statements about durable steps and checkpoints.
-- The macros are explained in storage/statements.py.

-- name: list_recorded_steps
-- Read what earlier attempts of jobs recorded, for their next attempts.
SELECT job_id, name, kind, state, number, value, detail, token FROM {p}step WHERE job_id {in:ids} ORDER BY job_id, number, name

-- name: list_steps
-- List the steps of a job in the order in which they ended, for people.
SELECT {StepRow} FROM {p}step WHERE job_id = :id AND kind <> 'checkpoint' ORDER BY number, started_at, name

-- fragment: replaces_step
-- Tell whether a new row may replace a row of the same name.
-- The result of a step stands: only the attempt that wrote it may write it again, because it does not
-- know whether its commit arrived. Values of checkpoints change, and an undone step runs again.
{p}step.state <> 'done' OR {p}step.kind <> 'step' OR excluded.state = 'undone' OR {p}step.token = excluded.token

-- fragment: failed_columns
-- Replace the row of a step that failed again.
kind = excluded.kind, state = excluded.state, number = excluded.number, value = NULL, detail = excluded.detail,
  token = excluded.token, started_at = excluded.started_at, ended_at = excluded.ended_at, actor = ''
WHERE {p}step.kind = 'step' AND {p}step.state <> 'done'

-- name: forget_steps
-- Forget a step and those that ended after it, so that they run again.
UPDATE {p}step SET state = 'forgotten', actor = :actor
WHERE job_id = :id AND kind = 'step'
  AND number >= (SELECT number FROM {p}step WHERE job_id = :id AND name = :name AND kind = 'step')
RETURNING name

-- name: list_undoable_steps
-- List the finished steps that have an undo function.
SELECT name FROM {p}step WHERE job_id = :id AND kind = 'step' AND state = 'done' AND detail LIKE '%"undo":%' ORDER BY number

-- name: set_step_result
-- Set the result of a step by hand. A new one counts as the last that ended.
INSERT INTO {p}step (job_id, name, kind, state, number, value, detail, token, started_at, ended_at, actor)
VALUES (:id, :name, 'step', 'done', (SELECT COALESCE(max(number), 0) + 1 FROM {p}step WHERE job_id = :id), :value, '{}',
        :token, :now, :now, :actor)
ON CONFLICT (job_id, name) DO UPDATE SET state = 'done', value = excluded.value, ended_at = excluded.ended_at,
  token = excluded.token, actor = excluded.actor
WHERE {p}step.kind = 'step'

-- name: clear_step_mark
-- Record that a step in doubt did not happen.
UPDATE {p}step SET state = 'forgotten', ended_at = :now, actor = :actor
WHERE job_id = :id AND name = :name AND state = 'running'

-- name: find_parked_evidence
-- Read the evidence of the attempt that parked a job.
SELECT evidence FROM {p}attempt WHERE job_id = :id AND token = :token AND verb = 'park' AND code = :code
