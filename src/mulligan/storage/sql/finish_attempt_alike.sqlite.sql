-- Write the attempt rows after `finish_alike`, for attempts that started at the same time.
-- Runs in the same transaction.
INSERT INTO {p}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, reason)
SELECT value, :token, :generation, :attempt, :worker, :worker, :started_at, :now, 'returned', 'succeed', 'returned'
FROM json_each(:ids)
