-- Write the attempt row of an attempt that returned.
INSERT INTO {p}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, reason)
VALUES (:id, :token, :generation, :attempt, :worker, :worker, :started_at, :now, 'returned', 'succeed', 'returned')
