-- Count dead generations that were retried manually, and those that then succeeded within a day.
WITH cohort AS MATERIALIZED ({part:cohort} AND generation > 1
), life AS MATERIALIZED (
  SELECT attempt.job_id, attempt.generation, max(ended_at) AS ended_at,
    min(ended_at) FILTER (WHERE ended = 'returned') AS succeeded_at,
    min(cls) FILTER (WHERE verb = 'die') AS cls, min(code) FILTER (WHERE verb = 'die') AS code,
    min(rule) FILTER (WHERE verb = 'die') AS rule
  FROM cohort AS again JOIN {p}attempt AS attempt ON attempt.job_id = again.id
  WHERE attempt.job_id > :after GROUP BY attempt.job_id, attempt.generation
)
SELECT old.cls, old.code, old.rule, count(*),
       count(*) FILTER (WHERE young.succeeded_at <= old.ended_at + 86400000000)
FROM life AS old JOIN life AS young ON young.job_id = old.job_id AND young.generation = old.generation + 1
WHERE old.cls IS NOT NULL AND (young.cls IS NOT NULL OR young.succeeded_at IS NOT NULL)
GROUP BY old.cls, old.code, old.rule ORDER BY 4 DESC LIMIT :limit
