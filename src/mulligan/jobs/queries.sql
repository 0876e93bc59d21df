-- Statements about jobs, their attempts, and searches.
-- The macros are explained in storage/statements.py.

-- fragment: filter_conditions
-- Conditions of job filters, one per line: the name of the field, a colon, the SQL.
-- ? stands for the parameter; a field with several values gets one condition each, joined by OR.
-- {+} becomes `+` where SQLite must not use the index of the column because another one is better.
-- Mulligan's own kinds are left out unless the filter names them. The lane of a queued job contains
-- its kind, so that counting reads only the index job_for_claim.
-- The phases here are those of jobs/why.py that follow from stored values alone.
state: {+}state = ?
kind: {+}kind = ?
others: kind NOT LIKE 'mulligan.%'
waiting_others: lane NOT LIKE '%|mulligan.%'
queue: {+}queue = ?
owner: {+}owner = ?
owned: owner <> ''
batch_id: {+}batch_id = ?
since: created_at >= :now - CAST(? AS BIGINT)
begun: created_at >= CAST(? AS BIGINT)
until: created_at <= CAST(? AS BIGINT) AND (finished_at IS NULL OR finished_at <= CAST(? AS BIGINT))
ended_from: finished_at >= CAST(? AS BIGINT)
ended_before: finished_at < CAST(? AS BIGINT)
from: id >= ?
code: {+}died_code = ?
class: {+}died_class = ?
group: {+}died_group = ?
step: EXISTS (SELECT 1 FROM {p}step AS s WHERE s.job_id = id AND s.kind = 'step' AND s.state IN ('failed', 'running') AND (s.name = CAST(? AS TEXT) OR substr(s.name, 1, length(CAST(? AS TEXT)) + 1) = CAST(? AS TEXT) || '['))
near.id: {+}id = ?
near.group: ({+}state = 'dead' AND {+}died_group = ?)
phase.held: {+}state = 'queued' AND {part:held_by_gate}
phase.waiting: state = 'queued' AND waits IS NOT NULL AND run_at > :now AND NOT {part:held_by_gate}
phase.scheduled: {+}state = 'queued' AND attempt = 0 AND run_at > :now AND NOT {part:held_by_gate}
phase.backing_off: {+}state = 'queued' AND attempt > 0 AND waits IS NULL AND run_at > :now AND NOT {part:held_by_gate}
phase.running: {+}state = 'running' AND cancel_reason IS NULL
phase.stopping: {+}state = 'running' AND cancel_reason IS NOT NULL
phase.parked: {+}state = 'parked'
phase.succeeded: {+}state = 'succeeded'
phase.dead: {+}state = 'dead'
phase.cancelled: {+}state = 'cancelled'
indexed: EXISTS (SELECT 1 FROM {p}job_arg AS arg WHERE arg.name = ?_name AND arg.value = ?_value AND arg.job_id = id)
arg.sqlite: instr(payload, ?) > 0
arg.postgres: strpos(payload, ?) > 0
-- Subqueries that select the ids of matching jobs, for filters that gather them first.
in.state: SELECT id FROM {p}job WHERE state = ?
in.code: SELECT id FROM {p}job WHERE state = 'dead' AND died_code = ?
in.group: SELECT id FROM {p}job WHERE state = 'dead' AND died_group = ?
in.ended_from: SELECT id FROM {p}job WHERE state IN ('succeeded', 'dead', 'cancelled') AND finished_at IS NOT NULL AND finished_at >= CAST(? AS BIGINT) AND finished_at < CAST(:ended_before_0 AS BIGINT) LIMIT 50000
in.near.id: SELECT CAST(? AS TEXT)
in.near.group: SELECT id FROM {p}job WHERE state = 'dead' AND died_group = ?
in.indexed: SELECT job_id FROM {p}job_arg WHERE name = ?_name AND value = ?_value AND job_id < :before AND job_id >= :floor

-- fragment: first_attempt_row
-- Build the attempt row of jobs that succeeded with their first attempt from the job's row.
-- The token is the constant 1, because `raise_tokens` may have raised the job's since.
SELECT id, 1, generation, attempt, succeeded_by, succeeded_by, started_at, finished_at, 'returned', 'succeed',
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'returned', 0.0, NULL,
  COALESCE((SELECT release FROM {p}worker AS w WHERE w.id = succeeded_by), '')
FROM {p}job WHERE succeeded_by IS NOT NULL

-- fragment: first_attempt_succeeded
-- Condition: the job succeeded with its first attempt, so it has no row in attempt.
(state = 'succeeded' AND (token = 1 OR succeeded_by IS NOT NULL))

-- fragment: held_by_gate
-- Condition: a closed gate holds the job, for at least as long as the job would wait anyway.
EXISTS (
  SELECT 1 FROM {p}gate AS gate
  WHERE (gate.until IS NULL OR gate.until > :now)
    AND ((gate.scope = 'queue' AND gate.key = queue) OR (gate.scope = 'kind' AND gate.key = kind)
         OR (gate.scope = 'dependency' AND replace(',' || uses || ',', ',' || gate.key || ',', '') <> ',' || uses || ','))
    AND (run_at <= :now
         OR COALESCE(gate.until, CASE WHEN gate.scope = 'dependency' AND gate.actor = 'breaker' THEN gate.probe_at END)
            IS NULL
         OR COALESCE(gate.until, CASE WHEN gate.scope = 'dependency' AND gate.actor = 'breaker' THEN gate.probe_at END)
            >= run_at))

-- name: get_job
-- Read one job.
SELECT {JobRow} FROM {p}job WHERE id = :id

-- name: find_jobs
-- Find jobs whose id starts with a prefix.
SELECT id FROM {p}job WHERE id >= :prefix AND id < :upper ORDER BY id LIMIT :limit

-- name: find_jobs_by_end
-- Find jobs whose id ends with a text, newest first. Reads all ids: only for what a person typed.
SELECT id FROM {p}job WHERE id LIKE :pattern ORDER BY id DESC LIMIT :limit

-- name: get_kinds_and_queues
-- Read kind and queue of jobs.
SELECT id, kind, queue FROM {p}job WHERE id {in:ids}

-- name: lock_jobs
-- Lock and read jobs in order of id, the order in which all transactions lock. Skip locked jobs.
SELECT {JobRow} FROM {p}job WHERE id {in:ids} ORDER BY id {lock:FOR UPDATE SKIP LOCKED}

-- name: list_attempts
-- List the attempts of one job in order.
SELECT {AttemptRow} FROM {p}attempt WHERE job_id = :id
UNION ALL {part:first_attempt_row} AND id = :id
ORDER BY 2

-- name: get_releases
-- Read the release of the app that last ran each job: of its worker, or of its latest attempt.
SELECT j.id, COALESCE(
  (SELECT w.release FROM {p}worker AS w WHERE w.id = COALESCE(j.worker, j.succeeded_by)),
  (SELECT a.release FROM {p}attempt AS a WHERE a.job_id = j.id ORDER BY a.token DESC LIMIT 1), '')
FROM {p}job AS j WHERE j.id {in:ids}

-- name: release_unique_key
-- Release the unique key of a job whose hold has expired.
-- The condition on unique_hash keeps a second enqueuer from releasing the key of a newer holder.
UPDATE {p}job SET unique_hash = NULL WHERE id = :id AND unique_hash = :unique_hash AND unique_until <= :now

-- fragment: is_past_deadline
-- Condition: the job waits and its deadline has passed.
deadline_at IS NOT NULL AND state IN ('queued', 'parked') AND deadline_at <= :now

-- name: list_due_deadlines
-- Lock waiting jobs whose deadline has passed. SKIP LOCKED: upkeep never waits.
SELECT {JobRow} FROM {p}job WHERE {part:is_past_deadline}
ORDER BY deadline_at LIMIT :limit {lock:FOR UPDATE SKIP LOCKED}

-- name: list_overdue_jobs
-- Lock queued jobs of a lane that were due before a time. SKIP LOCKED: upkeep never waits.
SELECT {JobRow} FROM {p}job WHERE state = 'queued' AND lane = :lane AND run_at <= :before
ORDER BY priority, run_at LIMIT :limit {lock:FOR UPDATE SKIP LOCKED}

-- name: delete_args
-- Delete the indexed arguments of removed jobs.
DELETE FROM {p}job_arg WHERE job_id {in:ids}

-- name: delete_attempts
-- Delete the attempts of removed jobs.
DELETE FROM {p}attempt WHERE job_id {in:ids}

-- name: delete_attempt_logs
-- Delete the logs of attempts of removed jobs.
DELETE FROM {p}attempt_log WHERE job_id {in:ids}

-- name: get_attempt_log
-- Read the log of an attempt; without a token, of the last attempt that has one.
SELECT token, records, stacks FROM {p}attempt_log
WHERE job_id = :id AND token = COALESCE(:token, token)
ORDER BY token DESC LIMIT 1

-- name: list_attempt_logs
-- List the attempts of a job that have a log.
SELECT token FROM {p}attempt_log WHERE job_id = :id ORDER BY token

-- name: delete_steps
-- Delete the steps and checkpoints of removed jobs.
DELETE FROM {p}step WHERE job_id {in:ids}

-- name: delete_jobs
-- Delete jobs.
DELETE FROM {p}job WHERE id {in:ids}

-- name: record_pruned_jobs
-- Record how many jobs retention removed.
INSERT INTO {p}pruned (at, kind, state, owner, code, count, first_id, last_id)
VALUES (:at, :kind, :state, :owner, :code, :jobs, :first_id, :last_id)

-- name: list_jobs
-- Read a page of matching jobs, newest first.
SELECT {JobRow} FROM {p}job
WHERE {matching} AND id < :before AND id >= :floor
ORDER BY id DESC LIMIT :limit

-- name: count_jobs_unordered
-- Count jobs that match a filter, up to a cap.
-- No order and no bounds, so that the planner may use any index.
SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE {matching} LIMIT :cap) AS few

-- name: count_jobs
-- Count jobs that match a filter within a range of ids, up to a cap.
SELECT count(*) FROM (
  SELECT 1 FROM {p}job WHERE {matching} AND id < :before AND id >= :floor LIMIT :cap
) AS few

-- name: list_payloads
-- Read the payloads of matching jobs, newest first.
SELECT id, payload FROM {p}job
WHERE {matching} AND id < :before AND id >= :floor
ORDER BY id DESC LIMIT :limit

-- name: find_indexed_page_end
-- Find the id at which a page of jobs with an indexed argument ends, and the id after it.
SELECT job_id FROM {p}job_arg
WHERE name = :indexed_0_name AND value = :indexed_0_value AND job_id < :before AND job_id >= :low
ORDER BY job_id DESC LIMIT 2 OFFSET :skip

-- name: find_page_end
-- Find the id at which a page of matching jobs ends, and the id after it.
SELECT id FROM {p}job WHERE {matching} AND id < :before ORDER BY id DESC LIMIT 2 OFFSET :skip

-- name: find_unique_holders
-- Find the jobs that hold unique keys.
SELECT unique_hash, id, payload, unique_until FROM {p}job WHERE unique_hash {in:hashes}

-- name: mark_announced
-- Mark jobs as announced, in the transaction that writes their job.queued events.
UPDATE {p}job SET announced = true WHERE id {in:ids}

-- name: move_job
-- Change the state of a job outside of an attempt: manual retry, cancel, release, deadline.
-- Compare-and-set on state, generation and token: of many requests at once, one succeeds.
UPDATE {p}job SET
  state = :state, run_at = COALESCE(:run_at, run_at), queue = COALESCE(:queue, queue),
  ready_at = CASE WHEN COALESCE(:run_at, run_at) > :now THEN COALESCE(:run_at, run_at) ELSE :now END,
  lane = COALESCE(substr(CAST(:lane AS TEXT), 1, length(CAST(:lane AS TEXT)) - 1), substr(lane, 1, length(lane) - 1))
         || COALESCE(CAST(:lane_suffix AS TEXT), substr(lane, length(lane))),
  reason = :reason, error = :error, choices = NULL,
  died_code = :died_code, died_class = :died_class, died_group = :died_group,
  choice = CASE WHEN :state = 'queued' THEN :choice ELSE choice END,
  generation = CASE WHEN :new_generation THEN generation + 1 ELSE generation END,
  attempt = CASE WHEN :new_generation THEN 0 ELSE attempt END,
  failures = CASE WHEN :new_generation THEN 0 ELSE failures END,
  losses = CASE WHEN :new_generation THEN 0 ELSE losses END,
  snoozes = CASE WHEN :new_generation THEN 0 ELSE snoozes END,
  counts = CASE WHEN :new_generation THEN NULL ELSE counts END,
  settings = CASE WHEN :new_generation OR CAST(:settings AS TEXT) IS NOT NULL THEN :settings ELSE settings END,
  first_started_at = CASE WHEN :new_generation THEN NULL ELSE first_started_at END,
  deadline_at = CASE WHEN :new_generation THEN :now + deadline_span WHEN NOT :drop_deadline THEN deadline_at END,
  finished_at = CASE WHEN :finished THEN :now END,
  unique_hash = :unique_hash,
  cancel_reason = NULL,
  waits = CASE WHEN :state = 'queued' AND NOT :new_generation THEN waits END,
  max_retries = COALESCE(:max_retries, max_retries), priority = COALESCE(:priority, priority),
  timeout = COALESCE(:timeout, timeout), policy = COALESCE(:policy, policy), payload = COALESCE(:payload, payload),
  version = COALESCE(:version, version),
  uses = COALESCE(:uses, uses), unique_key = COALESCE(:unique_key, unique_key)
WHERE id = :id AND state = :from_state AND generation = :generation AND token = :token
RETURNING announced, kind, queue, owner, batch_id, run_at

-- name: get_death
-- Read what the move that killed a job has written.
SELECT died_code, died_class, died_group FROM {p}job WHERE id = :id

-- name: restore_discarded
-- Restore what a discard removed, beside what `move_job` writes.
UPDATE {p}job SET choices = :choices, finished_at = :finished_at WHERE id = :id

-- name: get_kinds_and_payloads
-- Read the kind and the payload of jobs, for their titles.
SELECT id, kind, payload FROM {p}job WHERE id {in:ids}

-- name: list_owners
-- List the owners of jobs from a name on, in order.
-- A recursive query probes the index once per owner, however many jobs each has.
WITH RECURSIVE named(name, place) AS (
  SELECT min(owner), 1 FROM {p}job WHERE owner <> '' AND owner >= :start
  UNION ALL
  SELECT (SELECT min(owner) FROM {p}job WHERE owner <> '' AND owner > named.name), place + 1
  FROM named WHERE named.name IS NOT NULL AND place < :limit
)
SELECT name FROM named WHERE name IS NOT NULL
