-- Statements about insight: counts of the newest outcomes.
-- The macros are explained in storage/statements.py.

-- fragment: cohort
-- Select the jobs of a report: by age, id, kind and queue, without Mulligan's own kinds.
SELECT id, uses, state, token, generation, created_at, finished_at, error, succeeded_by FROM {p}job
WHERE id > :after AND created_at >= :since AND kind NOT LIKE 'mulligan.%'
  AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind) AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue)

-- name: insight_attempts
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

-- name: insight_generations
-- Count first generations of jobs that did not succeed at once, by outcome.
-- ms: time from the first failure to the end, rounded to three digits for grouping; 0 for deaths.
WITH cohort AS MATERIALIZED ({part:cohort} AND NOT {part:first_attempt_succeeded}
), life AS (
  SELECT max(cohort.state) AS state, max(cohort.generation) AS generations, max(cohort.finished_at) AS finished_at,
    min(ended_at) FILTER (WHERE ended IN ('failed', 'retry') AND verb NOT IN ('stop', 'hold')) AS failed_at,
    min(ended_at) FILTER (WHERE ended = 'returned') AS succeeded_at,
    count(*) FILTER (WHERE verb = 'retry') AS retries, count(*) FILTER (WHERE verb = 'die') AS deaths,
    count(*) FILTER (WHERE verb = 'die' AND cls IN ('quota', 'auth', 'invalid_input', 'permanent')
                     AND code NOT IN ('DEADLINE_PASSED', 'SNOOZE_LIMIT')) AS hopeless,
    min(CAST(1000000000000000 + attempt.token AS TEXT) || cls) FILTER (WHERE verb = 'retry' AND ended = 'failed') AS verdict
  FROM cohort JOIN {p}attempt AS attempt ON attempt.job_id = cohort.id
  WHERE attempt.job_id > :after AND attempt.generation = 1
  GROUP BY attempt.job_id
), ended AS (
  SELECT COALESCE(substr(verdict, 17), '') AS cls, retries > 0 AS retried, hopeless > 0 AS hopeless,
    CASE WHEN succeeded_at IS NOT NULL THEN 'succeeded' WHEN deaths > 0 THEN 'dead' WHEN generations > 1 THEN 'cancelled'
         WHEN state IN ('dead', 'cancelled') THEN state ELSE 'pending' END AS outcome,
    (COALESCE(succeeded_at, CASE WHEN generations = 1 THEN finished_at END, :now) - failed_at) / 1000 AS ms
  FROM life
)
SELECT cls, outcome, retried, hopeless,
  CASE WHEN outcome = 'dead' THEN ms * 0 WHEN ms < 1000 THEN ms
       WHEN ms < 10000 THEN ms / 10 * 10 WHEN ms < 100000 THEN ms / 100 * 100
       WHEN ms < 1000000 THEN ms / 1000 * 1000 WHEN ms < 10000000 THEN ms / 10000 * 10000
       WHEN ms < 100000000 THEN ms / 100000 * 100000 ELSE ms / 1000000 * 1000000 END AS ms,
  count(*) AS jobs
FROM ended GROUP BY 1, 2, 3, 4, 5 LIMIT :limit

-- name: insight_manual_retries
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
