-- Statements about workers, their leases, and retention of all features.
-- The macros are explained in storage/statements.py.

-- fragment: is_orphan
-- Condition: the job runs and its worker is closed or missing.
state = 'running' AND NOT EXISTS (SELECT 1 FROM {p}worker AS w WHERE w.id = worker AND w.closed_at IS NULL)

-- name: find_due_upkeep
-- Name the parts of upkeep that have something to do. Each test reads at most a few index entries.
SELECT 'manifest' WHERE NOT EXISTS (
  SELECT 1 FROM {p}manifest WHERE id = :manifest AND last_used_at > :now - CAST(:max_age AS BIGINT) AND last_used_at <= :now)
UNION ALL SELECT 'workers' WHERE EXISTS (SELECT 1 FROM {p}worker WHERE closed_at IS NULL AND id <> :worker)
  OR EXISTS (SELECT 1 FROM {p}job WHERE {part:is_orphan})
UNION ALL SELECT 'announcements' WHERE EXISTS (SELECT 1 FROM {p}job WHERE NOT announced)
UNION ALL SELECT 'deadlines' WHERE EXISTS (SELECT 1 FROM {p}job WHERE {part:is_past_deadline})
UNION ALL SELECT 'batches' WHERE EXISTS (SELECT 1 FROM {p}batch_progress AS progress WHERE {part:can_complete})
  OR EXISTS (
    SELECT 1 FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id) WHERE {part:can_expire})
  OR EXISTS (
    SELECT 1 FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id) WHERE {part:is_orphaned})
UNION ALL SELECT 'guards' WHERE EXISTS (SELECT 1 FROM {p}tally) OR EXISTS (SELECT 1 FROM {p}guard WHERE active)
UNION ALL SELECT 'schedules' WHERE EXISTS (SELECT 1 FROM {p}schedule)
UNION ALL SELECT 'operations' WHERE EXISTS (SELECT 1 FROM {p}operation WHERE active)
UNION ALL SELECT 'notifications' WHERE EXISTS (SELECT 1 FROM {p}subscription)

-- name: insert_worker
-- Insert a worker. No row: the id exists.
INSERT INTO {p}worker ({WorkerRow})
VALUES (:id, :host, :pid, :boot_id, :lease, :now, :now, :renewed_mono, NULL, '', :lock_path, :lock_dev, :lock_ino,
        :kinds, :queues, :concurrency, :release, :draining, :drain_reason, :renewing, :memory)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: renew_worker
-- Renew a worker, and with it the leases of all its jobs. A closed worker is never reopened.
-- The time for which it has renewed starts anew after a gap of more than half a lease, and after a
-- step of the clock, because it is not known where by the new clock the time before the step lies.
UPDATE {p}worker SET renewed_at = :now, renewed_mono = :mono, draining = :draining, memory = :memory,
  renewing = CASE
    WHEN :now - renewed_at NOT BETWEEN 0 AND lease / 2 THEN 0
    WHEN renewing + :now - renewed_at < :renewing THEN renewing + :now - renewed_at
    ELSE :renewing END
WHERE id = :id AND closed_at IS NULL RETURNING drain_reason

-- name: list_cancel_requests
-- List the jobs of a worker that are to be cancelled.
SELECT id, token, cancel_reason FROM {p}job WHERE state = 'running' AND worker = :worker AND cancel_reason IS NOT NULL

-- name: request_drain
-- Ask a worker to finish its jobs and exit.
UPDATE {p}worker SET drain_reason = :reason WHERE id = :id AND closed_at IS NULL RETURNING id

-- name: count_running_by_worker
-- Count the running jobs of each worker.
SELECT worker, count(*) FROM {p}job WHERE state = 'running' GROUP BY worker

-- name: close_worker
-- Close a worker's row. `last_renewed`: only if the worker has not renewed since.
UPDATE {p}worker SET closed_at = :now, close_reason = :reason
WHERE id = :id AND closed_at IS NULL AND (CAST(:last_renewed AS BIGINT) IS NULL OR renewed_at = :last_renewed) RETURNING id

-- name: delete_worker
-- Delete a worker that a bridge registered for one transaction only.
DELETE FROM {p}worker WHERE id = :id RETURNING id

-- name: list_workers
-- List workers.
SELECT {WorkerRow} FROM {p}worker WHERE :closed OR closed_at IS NULL ORDER BY started_at, id

-- name: list_leases
-- List the leases of one worker.
SELECT {Lease} FROM {p}job WHERE state = 'running' AND worker = :worker

-- name: list_orphans
-- Find running jobs whose worker is closed or missing. A sweeper that dies loses nothing.
-- ORDER BY an expression: with the bare id the planner would walk all jobs in order of id, instead
-- of sorting the few that run.
SELECT {Lease} FROM {p}job WHERE {part:is_orphan}
ORDER BY id || '' LIMIT :limit

-- name: advance_ready_jobs
-- Make queued jobs due that were ready before the clock was set back.
UPDATE {p}job SET run_at = :now WHERE state = 'queued' AND run_at > :now AND run_at <= :old_clock RETURNING 1

-- name: raise_tokens
-- Raise the fencing tokens of all jobs after a restore, so that older attempts are refused.
UPDATE {p}job SET token = token + :by RETURNING 1

-- name: update_progress
-- Store the progress of a running attempt, if it still holds its lease.
UPDATE {p}job SET progress = COALESCE(:progress, progress), progress_message = :message
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running'

-- name: prune_slots
-- Delete old slots of schedules.
DELETE FROM {p}slot WHERE (schedule, slot) IN (
  SELECT schedule, slot FROM {p}slot WHERE slot < :before ORDER BY slot LIMIT :limit) RETURNING slot

-- name: prune_attempt_logs
-- Delete old logs of failed attempts.
DELETE FROM {p}attempt_log WHERE (job_id, token) IN (
  SELECT job_id, token FROM {p}attempt_log WHERE at < :before ORDER BY at LIMIT :limit) RETURNING 1

-- name: prune_incidents
-- Delete incidents that were closed long ago.
DELETE FROM {p}incident WHERE id IN (
  SELECT id FROM {p}incident WHERE closed_at IS NOT NULL AND closed_at < :before ORDER BY closed_at LIMIT :limit
) RETURNING id

-- name: delete_orphaned_subscriptions
-- Delete subscriptions of batches that were removed.
DELETE FROM {p}subscription WHERE batch_id IS NOT NULL AND created_at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}batch AS b WHERE b.id = batch_id)
RETURNING id

-- name: prune_items
-- Delete items of operations that finished long ago.
DELETE FROM {p}operation_item WHERE (operation, place) IN (
  SELECT item.operation, item.place FROM {p}operation AS done
  JOIN {p}operation_item AS item ON item.operation = done.id
  WHERE NOT done.active AND done.finished_at < :before LIMIT :limit)
RETURNING 1

-- name: prune_operations
-- Delete operations that finished long ago and have no items left.
DELETE FROM {p}operation WHERE NOT active AND finished_at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}operation_item AS item WHERE item.operation = {p}operation.id)
RETURNING 1

-- name: delete_undeclared_schedules
-- Delete schedules that no manifest has declared for long.
DELETE FROM {p}schedule WHERE declared_at < :before RETURNING name

-- name: delete_idle_guards
-- Delete guards that restrict nothing and were not updated for long.
DELETE FROM {p}guard WHERE NOT active AND updated_at < :before RETURNING key

-- name: delete_closed_workers
-- Delete workers that closed long ago and have no running job.
DELETE FROM {p}worker WHERE closed_at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}job AS j WHERE j.state = 'running' AND j.worker = {p}worker.id) RETURNING id

-- name: record_hook_fault
-- Count errors of a hook, and keep the last one.
INSERT INTO {p}hook (name, faults, error, at, worker) VALUES (:name, :faults, :error, :now, :worker)
ON CONFLICT (name) DO UPDATE SET faults = {p}hook.faults + excluded.faults, error = excluded.error,
  at = excluded.at, worker = excluded.worker

-- name: list_hook_faults
-- List the hooks that raised an error since a time, with their last one.
SELECT name, faults, error, at, worker FROM {p}hook WHERE at >= :since ORDER BY name

-- name: delete_old_hook_faults
-- Delete the errors of hooks that have not raised one for long.
DELETE FROM {p}hook WHERE at < :before

-- name: delete_old_token_buckets
-- Delete old token buckets of owners.
DELETE FROM {p}meter WHERE scope = 'owner' AND at < :before

-- name: delete_old_group_states
-- Delete the states of failure groups that have no dead job left.
DELETE FROM {p}failure_group WHERE at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}job WHERE state = 'dead' AND died_group = {p}failure_group.fingerprint)
RETURNING fingerprint

-- name: delete_old_causes
-- Delete causes that no job died of for long, and the oldest of too many.
DELETE FROM {p}cause
WHERE (last_at < :before OR last_at < (SELECT last_at FROM {p}cause ORDER BY last_at DESC LIMIT 1 OFFSET :most))
  AND NOT EXISTS (SELECT 1 FROM {p}job WHERE state = 'dead' AND died_group = {p}cause.fingerprint)

-- name: delete_prune_records
-- Delete old records of what retention removed.
DELETE FROM {p}pruned WHERE at < :before

-- name: delete_expired_sessions
-- Delete expired sessions and sign-in links.
DELETE FROM {p}session WHERE expires_at < :before

-- name: delete_old_api_keys
-- Delete API keys that were revoked or expired long ago.
DELETE FROM {p}api_key WHERE COALESCE(revoked_at, expires_at) < :before

-- name: prune_stored_responses
-- Delete old responses to requests with an Idempotency-Key.
DELETE FROM {p}answer WHERE (key_id, name) IN
  (SELECT key_id, name FROM {p}answer WHERE at < :before ORDER BY at LIMIT :limit)
RETURNING name

-- name: explain_refusal
-- Find out why a settlement matched no row.
-- `written`: this settlement is stored already; the worker sent it twice.
SELECT j.state, j.worker, j.token, j.cancel_reason,
       EXISTS (SELECT 1 FROM {p}attempt AS a WHERE a.job_id = :id AND a.token = :token AND a.settled_by = :settled_by)
         OR (:token = 1 AND j.succeeded_by IS NOT NULL AND j.succeeded_by = :settled_by) AS written
FROM {p}job AS j WHERE j.id = :id
