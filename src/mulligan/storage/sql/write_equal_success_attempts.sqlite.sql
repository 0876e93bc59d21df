-- Write the attempt rows after `settle_equal_successes`, for attempts that started together.
-- Runs in the same transaction.
INSERT INTO {p}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, reason)
SELECT value, :token, :generation, :attempt, :worker, :worker, :started_at, :now, 'returned', 'succeed', 'returned'
FROM json_each(:ids)
