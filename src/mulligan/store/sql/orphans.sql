-- "Running, and its worker is closed or missing": a sweeper that dies half-way loses nothing. Sorted by an expression:
-- by the bare id a database would rather pass all jobs in that order than sort the few that run.
SELECT {as_lease} FROM {p}job WHERE state = 'running'
  AND NOT EXISTS (SELECT 1 FROM {p}worker AS w WHERE w.id = worker AND w.closed_at IS NULL)
ORDER BY id || '' LIMIT :most
