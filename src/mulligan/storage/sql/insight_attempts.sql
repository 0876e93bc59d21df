-- Count attempts of jobs that did not succeed at once, in four ways with one scan.
-- before_cls, before_code: the failure that the attempt retried. k: number within the generation.
-- Attempts that were lost, released, snoozed, held or cancelled are not counted.
WITH cohort AS MATERIALIZED ({part:cohort} AND NOT {part:first_attempt_succeeded}
), made AS MATERIALIZED (
  SELECT attempt.job_id, generation, token, ended, verb, cls, code, rule, started_at, ended_at, cost, uses
  FROM (SELECT id, uses FROM cohort) AS cohort JOIN {p}attempt AS attempt ON attempt.job_id = cohort.id
  WHERE attempt.job_id > :after
), counted AS MATERIALIZED (
  SELECT job_id, ended, verb, cls, code, rule, started_at, ended_at, cost, uses, lag(cls) OVER life AS before_cls,
         lag(code) OVER life AS before_code, row_number() OVER life AS k
  FROM made WHERE ended IN ('returned', 'failed', 'retry') AND verb NOT IN ('stop', 'hold')
  WINDOW life AS (PARTITION BY job_id, generation ORDER BY token)
)
SELECT 'ended' AS what, ended AS cls, '' AS code, '' AS more, 0 AS k, 0 AS age, count(*) AS n, 0 AS good, 0.0 AS cost,
       0 AS busy
FROM made GROUP BY ended
UNION ALL
SELECT 'code', before_cls, before_code, '', 0, count(DISTINCT ended_at / 3600000000), count(DISTINCT job_id), 0, 0, 0
FROM counted WHERE k > 1 GROUP BY before_cls, before_code
UNION ALL
SELECT 'failure', cls, code, rule || ' ' || verb, k, 0, count(*), 0, sum(cost), sum(ended_at - started_at)
FROM counted WHERE ended <> 'returned' GROUP BY cls, code, rule, verb, k
UNION ALL
SELECT 'trial', before_cls, before_code, uses, k, (:now - ended_at) / :age_step, count(*),
       count(*) FILTER (WHERE ended = 'returned'), sum(cost), sum(ended_at - started_at)
FROM counted WHERE k > 1 GROUP BY before_cls, before_code, uses, k, (:now - ended_at) / :age_step
LIMIT :limit
