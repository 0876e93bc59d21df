-- Count running jobs that started after a time, by queue and dependencies.
SELECT queue, uses, count(*) FROM {p}job WHERE state = 'running' AND started_at > :since GROUP BY queue, uses
