-- Build the attempt row of jobs that succeeded with their first attempt from the job's row.
-- The token is the constant 1, because `raise_tokens` may have raised the job's since.
SELECT id, 1, generation, attempt, succeeded_by, succeeded_by, started_at, finished_at, 'returned', 'succeed',
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'returned', 0.0, NULL
FROM {p}job WHERE succeeded_by IS NOT NULL
