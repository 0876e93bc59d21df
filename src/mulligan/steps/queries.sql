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
