-- Statements about failure groups and classified attempts, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: get_group_death_times
-- Find the first and the last death of each failure group.
SELECT wanted.name,
       (SELECT finished_at FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at LIMIT 1),
       (SELECT finished_at FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT 1)
FROM (SELECT value AS name FROM json_each(:names)) AS wanted

-- name: list_group_deaths
-- Read the newest deaths of one failure group with their age in hours, after a day in whole days.
-- Counting them in Python takes half the time of GROUP BY, which would sort them all.
SELECT kind, died_code, died_class,
       CASE WHEN finished_at >= :at_time THEN 0
            WHEN finished_at <= :at_time - :hours * 3600000000 THEN :hours
            WHEN finished_at <= :at_time - 86400000000 THEN (:at_time - finished_at) / 86400000000 * 24
            ELSE (:at_time - finished_at) / 3600000000 END,
       owner
FROM {p}job WHERE {matching} AND died_group = :name ORDER BY finished_at DESC LIMIT :cap

-- name: get_group_samples
-- Read the job of each failure group that died last.
SELECT wanted.name, {JobRow} FROM (SELECT value AS name FROM json_each(:names)) AS wanted
CROSS JOIN {p}job ON id = (
  SELECT id FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT 1)

-- name: count_group_retries
-- Count jobs of a failure group that were retried manually and ended, and those that succeeded.
-- INDEXED BY: SQLite does not see that the few jobs with generation > 1 answer this.
SELECT :name, count(CASE WHEN state IN ('succeeded', 'dead') THEN 1 END), count(CASE WHEN state = 'succeeded' THEN 1 END),
       count(CASE WHEN state IN ('queued', 'running', 'parked') THEN 1 END),
       max(CASE WHEN state = 'succeeded' THEN finished_at END)
FROM (
  SELECT DISTINCT job.id, job.state, job.finished_at FROM (
    SELECT job_id, generation FROM {p}attempt
    WHERE fingerprint = :name AND verb = 'die' ORDER BY job_id DESC LIMIT :limit
  ) AS died
  JOIN {p}job AS job INDEXED BY {p}job_for_retried ON job.id = died.job_id
  WHERE job.generation > 1 AND job.generation > died.generation
    AND (:owner IS NULL OR job.owner = :owner)
) AS again

-- name: write_causes
-- Store a cause.
INSERT INTO {p}cause ({CauseRow})
VALUES (:fingerprint, :code, :cls, :exception, :location, :first_at, :last_at, :deaths, :hours, :kinds, :sample, :releases)
ON CONFLICT (fingerprint) DO UPDATE SET
  code = excluded.code, cls = excluded.cls, exception = excluded.exception, location = excluded.location,
  first_at = excluded.first_at, last_at = excluded.last_at, deaths = excluded.deaths, hours = excluded.hours,
  kinds = excluded.kinds, sample = excluded.sample, releases = excluded.releases

-- name: count_rule_hits
-- Count what each rule classified, and what rules and policies in shadow mode would have decided.
SELECT rule, code, cls, verb, would_rule, would_code, would_cls, would_verb, count(*), max(ended_at)
FROM (SELECT attempt.rule, attempt.code, attempt.cls, attempt.verb, attempt.ended_at,
             CASE WHEN judged LIKE '%"shadow"%' THEN json_extract(judged, '$.shadow.rule') END AS would_rule,
             CASE WHEN judged LIKE '%"shadow"%' THEN json_extract(judged, '$.shadow.code') END AS would_code,
             CASE WHEN judged LIKE '%"shadow"%' THEN json_extract(judged, '$.shadow.class') END AS would_cls,
             CASE WHEN judged LIKE '%"shadow_policy"%' THEN json_extract(judged, '$.shadow_policy.verb') END AS would_verb
      FROM {p}attempt AS attempt JOIN {p}job AS job ON job.id = attempt.job_id
      WHERE attempt.job_id > :after AND attempt.ended_at >= :since AND attempt.rule IS NOT NULL
        AND job.kind NOT LIKE 'mulligan.%' AND (CAST(:kind AS TEXT) IS NULL OR job.kind = :kind)) AS judged
GROUP BY rule, code, cls, verb, would_rule, would_code, would_cls, would_verb ORDER BY 9 DESC LIMIT :limit

-- name: list_attempts_by_rule
-- List the newest attempts that a rule classified, or would have classified while in shadow mode.
SELECT attempt.job_id, job.kind, attempt.attempt, attempt.code, attempt.cls, attempt.verb, attempt.ended_at, attempt.public
FROM {p}attempt AS attempt JOIN {p}job AS job ON job.id = attempt.job_id
WHERE attempt.job_id > :after AND attempt.ended_at >= :since AND job.kind NOT LIKE 'mulligan.%'
  AND (CAST(:kind AS TEXT) IS NULL OR job.kind = :kind)
  AND (attempt.rule = :rule OR CASE WHEN judged LIKE '%"shadow"%' THEN json_extract(judged, '$.shadow.rule') = :rule ELSE false END)
ORDER BY attempt.job_id DESC, attempt.token DESC LIMIT :limit
