-- Statements about workers, their leases, and retention of all features, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: claim_jobs
-- Claim jobs that this transaction has just read: queued to running.
-- One statement, so that the library releases the GIL once and calls no Python code meanwhile.
UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
  started_at = :now, first_started_at = COALESCE(first_started_at, :now), progress = NULL, progress_message = '',
  waits = NULL, unique_hash = CASE WHEN instr(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
WHERE rowid IN (SELECT value FROM json_each(:places))

-- name: is_open_worker
-- Test whether a worker is open, so that it may claim.
SELECT 1 FROM {p}worker WHERE id = :worker AND closed_at IS NULL

-- name: list_claimable_jobs
-- Read the leases that `claim_jobs` will create from these jobs, if they are still queued and due.
-- The columns of a lease as they will be written, between the rowid and `announced`.
SELECT rowid, id, kind, queue, owner, :worker AS worker, token + 1, attempt + 1, generation, priority, payload, uses, failures, losses,
  snoozes, max_retries, policy, timeout, deadline_at, created_at, run_at, :now, COALESCE(first_started_at, :now), alone,
  batch_id, choice, unique_key, unique_cover, cancel_reason, counts, settings, trace, version, announced
FROM {p}job
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued' AND run_at <= :now
  AND (deadline_at IS NULL OR deadline_at > :now)

-- name: settle
-- Settle one attempt: running to the state that was decided, fenced by id, worker, token and state.
-- If a cancel was requested after the decision, no row changes and the attempt is decided again.
UPDATE {p}job SET
  state = :state, worker = NULL, run_at = COALESCE(:run_at, run_at), queue = COALESCE(:queue, queue),
  ready_at = max(COALESCE(:run_at, run_at), :now),
  lane = CASE WHEN :state = 'queued'
              THEN COALESCE(:lane, substr(lane, 1, length(lane) - 1) || CASE WHEN :failures > 0 THEN '1' ELSE '0' END)
              ELSE lane END,
  failures = :failures, losses = :losses, snoozes = :snoozes, alone = :alone, counts = :counts, settings = :settings,
  deadline_at = CASE WHEN :verb = 'undo' THEN NULL ELSE deadline_at END,
  died_code = CASE WHEN :state = 'dead' THEN COALESCE(:code, 'UNKNOWN') END,
  died_class = CASE WHEN :state = 'dead' THEN COALESCE(:cls, 'unknown') END,
  died_group = CASE WHEN :state = 'dead' THEN COALESCE(NULLIF(:fingerprint, ''), 'code-' || COALESCE(:code, 'UNKNOWN')) END,
  result = :result, error = :error, choices = :choices, reason = COALESCE(:reason, 'returned'), cost = cost + :cost,
  finished_at = CASE WHEN :state IN ('succeeded', 'dead', 'cancelled') THEN :now END,
  succeeded_by = CASE WHEN :ended IS NULL THEN :worker END,
  cancel_reason = CASE WHEN :state = 'queued' THEN NULL ELSE cancel_reason END,
  unique_hash = CASE WHEN :release_key THEN NULL ELSE unique_hash END
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND (cancel_reason IS NULL OR :cancel_known)

-- name: write_attempts
-- Write the attempt row of a settled attempt.
INSERT INTO {p}attempt ({AttemptRow})
VALUES (:id, :token, :generation, :attempt, :worker, :settled_by, :started_at, :now, :ended, :verb, :code, :cls, :rule, :public,
        :evidence, :private, :fingerprint, :run_at, :reason, :cost, :judged,
        COALESCE((SELECT release FROM {p}worker WHERE id = :worker), ''))

-- name: write_attempt_logs
-- Write the log of a failed attempt.
INSERT INTO {p}attempt_log (job_id, token, at, records, stacks)
VALUES (:job_id, :token, :now, :records, :stacks) ON CONFLICT DO NOTHING
