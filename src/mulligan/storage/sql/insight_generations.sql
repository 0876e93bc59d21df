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
