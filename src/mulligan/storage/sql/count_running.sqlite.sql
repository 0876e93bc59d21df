-- Count running jobs by queue and dependencies. INDEXED BY: SQLite would scan the table.
SELECT queue, uses, count(*) FROM {p}job INDEXED BY {p}job_for_sweep WHERE state = 'running' GROUP BY queue, uses
