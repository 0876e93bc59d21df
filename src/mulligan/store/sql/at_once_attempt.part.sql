-- The attempt of a job that succeeded at once: the job's row tells all of it. Its token is known, whatever was added to the
-- job's since (`lift_tokens`).
SELECT id, 1, generation, attempt, ran_by, ran_by, started_at, finished_at, 'returned', 'succeed',
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'returned', 0.0, NULL
FROM {p}job WHERE ran_by IS NOT NULL
