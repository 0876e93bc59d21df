-- Count running jobs by queue and dependencies.
SELECT queue, uses, count(*) FROM {p}job WHERE state = 'running' GROUP BY queue, uses
