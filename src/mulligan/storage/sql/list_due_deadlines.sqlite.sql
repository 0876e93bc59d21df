-- Find waiting jobs whose deadline has passed.
SELECT {job} FROM {p}job
WHERE deadline_at IS NOT NULL AND state IN ('queued', 'parked') AND deadline_at <= :now
ORDER BY deadline_at LIMIT :limit
