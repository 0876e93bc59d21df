-- What runs now, by what may be limited. As many rows are read as run.
SELECT queue, uses, count(*) FROM {p}job WHERE state = 'running' GROUP BY queue, uses
