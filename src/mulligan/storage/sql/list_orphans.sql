-- Find running jobs whose worker is closed or missing. A sweeper that dies loses nothing.
-- ORDER BY an expression: with the bare id the planner would walk all jobs in order of id, instead
-- of sorting the few that run.
SELECT {lease} FROM {p}job WHERE state = 'running'
  AND NOT EXISTS (SELECT 1 FROM {p}worker AS w WHERE w.id = worker AND w.closed_at IS NULL)
ORDER BY id || '' LIMIT :limit
