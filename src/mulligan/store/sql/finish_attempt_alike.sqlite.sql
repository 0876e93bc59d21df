-- After `finish_alike`, in the same transaction, for those that began at the same moment and were the same attempt.
INSERT INTO {p}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, reason)
SELECT value, :token, :generation, :attempt, :worker, :worker, :started_at, :now, 'returned', 'succeed', 'returned'
FROM json_each(:ids)
