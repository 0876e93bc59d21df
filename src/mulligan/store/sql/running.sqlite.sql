-- What runs now, by what may be limited. As many rows are read as run: the planner would rather read the table.
SELECT queue, uses, count(*) FROM {p}job INDEXED BY {p}job_for_sweep WHERE state = 'running' GROUP BY queue, uses
