-- Count jobs of failure groups that were retried manually and ended, and those that succeeded.
-- `generation > 1` follows from the other condition; it lets the planner use job_for_retried.
SELECT wanted.name, count(DISTINCT job.id), count(DISTINCT job.id) FILTER (WHERE job.state = 'succeeded')
FROM unnest(CAST(:names AS text[])) AS wanted (name)
CROSS JOIN LATERAL (
  SELECT job_id, generation FROM {p}attempt
  WHERE fingerprint = wanted.name AND verb = 'die' ORDER BY job_id DESC LIMIT :limit
) AS died
JOIN {p}job AS job ON job.id = died.job_id
WHERE job.generation > 1 AND job.generation > died.generation AND job.state IN ('succeeded', 'dead')
  AND (CAST(:owner AS TEXT) IS NULL OR job.owner = :owner)
GROUP BY 1
