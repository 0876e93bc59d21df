-- Statements about failure groups and classified attempts, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: get_group_death_times
-- Find the first and the last death of each failure group.
SELECT wanted.name,
       (SELECT finished_at FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at LIMIT 1),
       (SELECT finished_at FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT 1)
FROM unnest(CAST(:names AS text[])) AS wanted (name)

-- name: count_group_deaths
-- Count the newest deaths of failure groups: by kind, code and class, by age in hours, and by owner.
-- After a day, ages are whole days. The time is a parameter: now_us() would be called per row.
SELECT name, kind, died_code, died_class, ago, owner, count(*) FROM (
  SELECT wanted.name, few.kind, few.died_code, few.died_class, few.owner,
         CASE WHEN finished_at >= CAST(:at_time AS bigint) THEN 0
              WHEN finished_at <= CAST(:at_time AS bigint) - CAST(:hours AS bigint) * 3600000000 THEN CAST(:hours AS bigint)
              WHEN finished_at <= CAST(:at_time AS bigint) - 86400000000
              THEN (CAST(:at_time AS bigint) - finished_at) / 86400000000 * 24
              ELSE (CAST(:at_time AS bigint) - finished_at) / 3600000000 END AS ago
  FROM unnest(CAST(:names AS text[])) AS wanted (name)
  CROSS JOIN LATERAL (
    SELECT kind, died_code, died_class, owner, finished_at FROM {p}job
    WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT :cap
  ) AS few
) AS death
GROUP BY GROUPING SETS ((name, kind, died_code, died_class), (name, ago), (name, owner))

-- name: get_group_samples
-- Read the job of each failure group that died last.
SELECT wanted.name, newest.* FROM unnest(CAST(:names AS text[])) AS wanted (name)
CROSS JOIN LATERAL (
  SELECT {JobRow} FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT 1
) AS newest

-- name: count_group_retries
-- Count jobs of failure groups that were retried manually and ended, and those that succeeded.
-- `generation > 1` follows from the other condition; it lets the planner use job_for_retried.
SELECT wanted.name, count(DISTINCT job.id) FILTER (WHERE job.state IN ('succeeded', 'dead')),
       count(DISTINCT job.id) FILTER (WHERE job.state = 'succeeded'),
       count(DISTINCT job.id) FILTER (WHERE job.state IN ('queued', 'running', 'parked')),
       max(job.finished_at) FILTER (WHERE job.state = 'succeeded')
FROM unnest(CAST(:names AS text[])) AS wanted (name)
CROSS JOIN LATERAL (
  SELECT job_id, generation FROM {p}attempt
  WHERE fingerprint = wanted.name AND verb = 'die' ORDER BY job_id DESC LIMIT :limit
) AS died
JOIN {p}job AS job ON job.id = died.job_id
WHERE job.generation > 1 AND job.generation > died.generation
  AND (CAST(:owner AS TEXT) IS NULL OR job.owner = :owner)
GROUP BY 1

-- name: write_causes
-- Store causes.
INSERT INTO {p}cause ({CauseRow}) SELECT {CauseRow} FROM {set:CauseRow}
ON CONFLICT (fingerprint) DO UPDATE SET
  code = excluded.code, cls = excluded.cls, exception = excluded.exception, location = excluded.location,
  first_at = excluded.first_at, last_at = excluded.last_at, deaths = excluded.deaths, hours = excluded.hours,
  kinds = excluded.kinds, sample = excluded.sample, releases = excluded.releases

-- name: count_rule_hits
-- Count what each rule classified, and what rules and policies in shadow mode would have decided.
SELECT rule, code, cls, verb, would_rule, would_code, would_cls, would_verb, count(*), max(ended_at)
FROM (SELECT attempt.rule, attempt.code, attempt.cls, attempt.verb, attempt.ended_at,
             CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,rule}' END AS would_rule,
             CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,code}' END AS would_code,
             CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,class}' END AS would_cls,
             CASE WHEN judged LIKE '%"shadow_policy"%' THEN judged::json #>> '{shadow_policy,verb}' END AS would_verb
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
  AND (attempt.rule = :rule OR CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,rule}' = :rule ELSE false END)
ORDER BY attempt.job_id DESC, attempt.token DESC LIMIT :limit
