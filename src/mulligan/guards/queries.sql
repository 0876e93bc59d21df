-- Statements about gates, limits and guards.
-- The macros are explained in storage/statements.py.

-- name: list_gates
-- List all closed gates.
SELECT {Gate} FROM {p}gate ORDER BY scope, key

-- name: close_gate
-- Close a gate, or extend one that is closed. A gate that is closed without an end stays so.
INSERT INTO {p}gate ({Gate}) VALUES (:scope, :key, :since, :until, :reason, :actor, :probe_at)
ON CONFLICT (scope, key) DO UPDATE SET
  until = CASE WHEN {p}gate.until IS NULL OR excluded.until IS NULL THEN NULL
               WHEN excluded.until > {p}gate.until THEN excluded.until ELSE {p}gate.until END,
  since = CASE WHEN {p}gate.until <= excluded.since THEN excluded.since ELSE {p}gate.since END,
  reason = CASE WHEN {p}gate.until IS NULL THEN {p}gate.reason ELSE excluded.reason END,
  actor = CASE WHEN {p}gate.until IS NULL THEN {p}gate.actor ELSE excluded.actor END,
  probe_at = CASE WHEN {p}gate.until IS NULL THEN {p}gate.probe_at ELSE excluded.probe_at END

-- name: open_gate
-- Open a gate.
DELETE FROM {p}gate WHERE scope = :scope AND key = :key RETURNING key

-- name: list_limits
-- List the limits that operators set.
SELECT {LimitRow} FROM {p}limits ORDER BY scope, key

-- name: set_limit
-- Set or replace the limit of a queue or dependency.
INSERT INTO {p}limits ({LimitRow}) VALUES (:scope, :key, :concurrency, :rate, :since, :until, :reason, :actor)
ON CONFLICT (scope, key) DO UPDATE SET
  concurrency = excluded.concurrency, rate = excluded.rate, since = excluded.since, until = excluded.until,
  reason = excluded.reason, actor = excluded.actor

-- name: clear_limit
-- Remove the limit that an operator set.
DELETE FROM {p}limits WHERE scope = :scope AND key = :key RETURNING key

-- name: count_waiting
-- Count the queued jobs of one lane: due now, and due later. Counting stops at the cap.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE state = 'queued' AND lane = :lane AND priority = :priority
                              AND run_at <= :at_time LIMIT :cap) AS due),
       (SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE state = 'queued' AND lane = :lane AND priority = :priority
                              AND run_at > :at_time LIMIT :cap) AS later)

-- name: list_active_guards
-- List the guards that restrict claims.
SELECT {GuardRow} FROM {p}guard WHERE active

-- name: list_guards
-- List all guards.
SELECT {GuardRow} FROM {p}guard

-- name: lock_guard
-- Lock and read one guard until its update is committed.
-- SKIP LOCKED: if another worker holds it, the caller appends a tally instead of waiting.
SELECT {GuardRow} FROM {p}guard WHERE scope = :scope AND key = :key {lock:FOR UPDATE SKIP LOCKED}

-- name: guard_exists
-- Test whether a guard exists.
SELECT 1 FROM {p}guard WHERE scope = :scope AND key = :key

-- name: insert_guard
-- Insert an empty guard, unless there is one.
INSERT INTO {p}guard ({GuardRow}, updated_at) VALUES (:scope, :key, 0, false, '', :now) ON CONFLICT (scope, key) DO NOTHING

-- name: update_guard
-- Store a guard by compare-and-set on its version.
UPDATE {p}guard SET version = version + 1, active = :active, body = :body, updated_at = :now
WHERE scope = :scope AND key = :key AND version = :version RETURNING version

-- name: append_tally
-- Store outcomes for a guard that another worker has locked.
INSERT INTO {p}tally (scope, key, body) VALUES (:scope, :key, :body)

-- name: list_tallied_guards
-- List the guards that have tallies.
SELECT DISTINCT scope, key FROM {p}tally

-- name: set_probe_time
-- Store when the breaker probes a dependency next.
UPDATE {p}gate SET probe_at = :probe_at WHERE scope = :scope AND key = :key

-- name: get_trial_job
-- Read a job of a held kind that is tried, and the attempt of the trial.
SELECT job.token, job.owner, job.state, attempt.ended, attempt.code
FROM {p}job AS job LEFT JOIN {p}attempt AS attempt ON attempt.job_id = job.id AND attempt.token = :token
WHERE job.id = :id

-- name: is_running
-- Test whether an attempt is still running.
SELECT 1 FROM {p}job WHERE id = :id AND token = :token AND state = 'running'
