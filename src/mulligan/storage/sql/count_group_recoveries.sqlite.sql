-- Count jobs of a failure group that were retried manually and ended, and those that succeeded.
-- INDEXED BY: SQLite does not see that the few jobs with generation > 1 answer this.
SELECT count(*), count(CASE WHEN state = 'succeeded' THEN 1 END) FROM (
  SELECT DISTINCT job.id, job.state FROM (
    SELECT job_id, generation FROM {p}attempt
    WHERE fingerprint = :name AND verb = 'die' ORDER BY job_id DESC LIMIT :limit
  ) AS died
  JOIN {p}job AS job INDEXED BY {p}job_for_retried ON job.id = died.job_id
  WHERE job.generation > 1 AND job.generation > died.generation AND job.state IN ('succeeded', 'dead')
    AND (:owner IS NULL OR job.owner = :owner)
) AS again
