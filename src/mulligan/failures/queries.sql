-- Statements about failure groups and classified attempts.
-- The macros are explained in storage/statements.py.

-- name: insight_bounds
-- Find the ids at which the newest :jobs jobs and :attempts attempts begin. NULL: there are fewer.
SELECT (SELECT id FROM {p}job WHERE id > :low ORDER BY id DESC LIMIT 1 OFFSET :jobs),
       (SELECT job_id FROM {p}attempt WHERE job_id > :low ORDER BY job_id DESC, token DESC LIMIT 1 OFFSET :attempts)

-- name: list_groups
-- List failure groups with their newest death.
-- A recursive query probes the index once per group, however many jobs died.
WITH RECURSIVE named(name) AS (
  SELECT min(died_group) FROM {p}job WHERE state = 'dead'
  UNION ALL
  SELECT (SELECT min(died_group) FROM {p}job WHERE state = 'dead' AND died_group > named.name)
  FROM named WHERE named.name IS NOT NULL
), few AS (
  SELECT name FROM named WHERE name IS NOT NULL LIMIT :examined
)
SELECT name, (SELECT max(finished_at) FROM {p}job WHERE state = 'dead' AND died_group = name) AS last
FROM few ORDER BY last DESC, name LIMIT :limit

-- name: list_groups_of_owner
-- List the failure groups of one owner with their newest death.
-- A recursive query probes the index once per group, however many jobs died.
WITH RECURSIVE named(name) AS (
  SELECT min(died_group) FROM {p}job WHERE state = 'dead' AND owner = :owner
  UNION ALL
  SELECT (SELECT min(died_group) FROM {p}job WHERE state = 'dead' AND owner = :owner AND died_group > named.name)
  FROM named WHERE named.name IS NOT NULL
), few AS (
  SELECT name FROM named WHERE name IS NOT NULL LIMIT :examined
)
SELECT name,
       (SELECT max(finished_at) FROM {p}job WHERE state = 'dead' AND owner = :owner AND died_group = name) AS last
FROM few ORDER BY last DESC, name LIMIT :limit

-- name: list_groups_matching
-- List the failure groups of jobs that match a filter, with the newest death of each.
SELECT died_group, max(finished_at) AS last FROM {p}job WHERE {matching} GROUP BY died_group
ORDER BY last DESC, died_group LIMIT :limit

-- name: is_known_group
-- Test whether a job ever died with this fingerprint, among the newest.
SELECT 1 FROM (
  SELECT job_id FROM {p}attempt WHERE fingerprint = :fingerprint AND verb = 'die' ORDER BY job_id DESC LIMIT :limit
) AS died
JOIN {p}job AS job ON job.id = died.job_id
WHERE (CAST(:owner AS TEXT) IS NULL OR job.owner = :owner) LIMIT 1

-- name: list_group_members
-- Read arguments, worker and release of the newest dead jobs of a failure group.
-- Long payloads are left out: they hold files, and their arguments are not counted.
SELECT CASE WHEN length(few.payload) <= 4000 THEN few.payload ELSE '{}' END, attempt.worker, NULLIF(attempt.release, '')
FROM (
  SELECT id, token, payload FROM {p}job WHERE {matching} AND died_group = :name ORDER BY finished_at DESC LIMIT :limit
) AS few
LEFT JOIN {p}attempt AS attempt ON attempt.job_id = few.id AND attempt.token = few.token

-- name: get_causes
-- Read causes without their samples.
SELECT fingerprint, code, cls, exception, location, first_at, last_at, deaths, hours, kinds, '', releases FROM {p}cause
WHERE fingerprint {in:names}

-- name: get_cause_samples
-- Read the last death of causes.
SELECT fingerprint, sample FROM {p}cause WHERE fingerprint {in:names}

-- name: list_causes
-- List the causes with the newest deaths.
SELECT fingerprint, last_at FROM {p}cause ORDER BY last_at DESC LIMIT :limit

-- name: list_attempts_of_deaths
-- Read the attempts of jobs.
SELECT {AttemptRow} FROM {p}attempt WHERE job_id {in:ids}

-- name: releases_of_attempts
-- Read the releases in which the attempts of jobs ran.
SELECT job_id, token, release FROM {p}attempt WHERE job_id {in:ids} AND release <> ''

-- name: list_group_states
-- List the states of failure groups of one scope.
SELECT {FailureGroupRow} FROM {p}failure_group WHERE scope = :scope

-- name: get_group_state
-- Read the state of one failure group.
SELECT {FailureGroupRow} FROM {p}failure_group WHERE scope = :scope AND fingerprint = :fingerprint

-- name: write_group_state
-- Store the state of a failure group.
INSERT INTO {p}failure_group ({FailureGroupRow})
VALUES (:fingerprint, :scope, :state, :until, :note, :actor, :at, :resolved_at, :in_release, :regressed_at, :assignee)
ON CONFLICT (fingerprint, scope) DO UPDATE SET
  state = excluded.state, until = excluded.until, note = excluded.note, actor = excluded.actor, at = excluded.at,
  resolved_at = excluded.resolved_at, in_release = excluded.in_release, regressed_at = excluded.regressed_at,
  assignee = excluded.assignee

-- name: list_resolved_groups
-- List the marks of resolved groups that have not regressed.
SELECT {FailureGroupRow} FROM {p}failure_group
WHERE fingerprint {in:names} AND state = 'resolved' AND regressed_at IS NULL ORDER BY fingerprint, scope

-- name: mark_regressed
-- Record that a resolved group has regressed, unless its mark was changed.
UPDATE {p}failure_group SET regressed_at = :at
WHERE fingerprint = :fingerprint AND scope = :scope AND state = 'resolved' AND at = :marked_at AND regressed_at IS NULL
RETURNING fingerprint

-- name: list_past_attempts
-- Read counted attempts of past jobs, job by job, for a backtest of rules.
-- Jobs that succeeded with their first attempt are left out: there is no failure to classify.
SELECT job.id, job.kind, job.uses, attempt.token, attempt.generation, attempt.ended, attempt.verb, attempt.code, attempt.cls,
       attempt.rule, attempt.judged, attempt.evidence, attempt.private, attempt.cost
FROM {p}job AS job JOIN {p}attempt AS attempt ON attempt.job_id = job.id
WHERE attempt.job_id >= :from_id AND (attempt.job_id, attempt.token) > (:from_id, :from_token)
  AND attempt.ended IN ('returned', 'failed', 'retry') AND attempt.verb <> 'hold'
  AND NOT (job.state = 'succeeded' AND (job.token = 1 OR job.succeeded_by IS NOT NULL))
  AND job.created_at >= :since AND job.kind NOT LIKE 'mulligan.%'
  AND (CAST(:kind AS TEXT) IS NULL OR job.kind = :kind)
ORDER BY attempt.job_id, attempt.token LIMIT :limit
