-- After `finish_alike`, in the same transaction: the row knows all else that is told of an attempt that returned.
INSERT INTO {p}attempt (job_id, token, generation, attempt, worker, settled_by, started_at, ended_at, ended, verb, reason)
SELECT id, token, generation, attempt, :worker, :worker, started_at, :now, 'returned', 'succeed', 'returned'
FROM {p}job WHERE id IN (SELECT value FROM json_each(:ids)) AND token = :token
