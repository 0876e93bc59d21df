-- Count the running jobs of each worker.
SELECT worker, count(*) FROM {p}job WHERE state = 'running' GROUP BY worker
