-- Statements about workers, their leases, and retention of all features, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: save_checkpoint
-- Save a checkpoint, if the attempt still holds its lease.
-- The row lock keeps the lease from being declared lost before the commit.
-- NO KEY UPDATE: the attempt may be adding members in another transaction, which holds KEY SHARE
-- (holds_lease). With a stronger lock the attempt would wait for itself.
WITH fenced AS MATERIALIZED (
  SELECT id, token FROM {p}job
  WHERE id = :id AND worker = :worker AND token = :token AND state = 'running'
  FOR NO KEY UPDATE
)
INSERT INTO {p}checkpoint (job_id, name, value, token, at)
SELECT id, :name, :value, token, {p}now_us() FROM fenced
ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value, token = excluded.token, at = excluded.at
RETURNING job_id

-- fragment: claim_assignments
-- Assignments that turn a queued job into a running one.
-- The subqueries make the server call the clock once per statement instead of once per row.
state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
started_at = (SELECT {p}now_us()), first_started_at = COALESCE(first_started_at, (SELECT {p}now_us())), announced = true,
progress = NULL, progress_message = '',
unique_hash = CASE WHEN strpos(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END

-- fragment: claim_locked
-- Turn the rows in `locked` into leases and select their events.
-- A locked row cannot move, so it is addressed by its ctid.
taken AS (
  UPDATE {p}job SET {part:claim_assignments}
  WHERE ctid = ANY (ARRAY(SELECT row_location FROM locked))
  RETURNING {Lease}
), events AS (
  {part:queued_events}
  FROM taken WHERE id IN (SELECT locked_id FROM locked WHERE NOT was_announced)
  UNION ALL
  {part:started_events}
  FROM taken
), {part:write_events}

-- fragment: lock_row
-- Lock the row of each ending `i` and read its ctid and the values that the fence compares.
CROSS JOIN LATERAL (
  SELECT ctid AS row_location, state AS was_state, worker AS was_worker, token AS was_token, cancel_reason IS NOT NULL AS cancel_requested
  FROM {p}job WHERE id = i.id FOR UPDATE
) AS job

-- fragment: started_events
-- Select the job.started events of claimed jobs.
SELECT started_at, 'job.started', id, batch_id, owner, attempt, token, '{"worker":"' || worker || '"}'

-- name: claim_from_lanes
-- Claim the next due jobs of lanes, of each (lane, priority) a number: queued to running.
-- SKIP LOCKED: workers that claim at once get different jobs. A closed worker claims nothing.
-- `since` skips the index entries of jobs that were claimed lately, see `due_jobs`.
WITH locked AS MATERIALIZED (
  SELECT job.locked_id, job.row_location, job.was_announced
  FROM {set:LaneShare}
  CROSS JOIN LATERAL (
    SELECT id AS locked_id, ctid AS row_location, announced AS was_announced FROM {p}job
    WHERE state = 'queued' AND lane = i.lane AND priority = CAST(i.priority AS integer)
      AND run_at >= i.since AND run_at <= {p}now_us() AND (deadline_at IS NULL OR deadline_at > {p}now_us())
    ORDER BY run_at, id LIMIT i.jobs
    FOR UPDATE SKIP LOCKED
  ) AS job
  WHERE EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
), {part:claim_locked}
SELECT {Lease} FROM taken WHERE (SELECT n FROM logged) > 0

-- name: claim_jobs
-- Claim chosen jobs: queued to running. A closed worker claims nothing.
-- The jobs were chosen without locks, so several workers may want the same ones. SKIP LOCKED: the
-- first gets a job, the others go on to their next choice.
-- `state || ''` keeps the planner from job_for_claim: if statistics say that nothing is queued, it
-- would scan that index for every row instead of looking up the id.
WITH locked AS MATERIALIZED (
  SELECT job.locked_id, job.row_location, job.was_announced
  FROM {set:ClaimCandidate}
  CROSS JOIN LATERAL (
    SELECT id AS locked_id, ctid AS row_location, announced AS was_announced FROM {p}job
    WHERE id = i.id AND state || '' = 'queued' AND run_at <= {p}now_us()
      AND (deadline_at IS NULL OR deadline_at > {p}now_us())
    FOR UPDATE SKIP LOCKED
  ) AS job
  WHERE EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
  ORDER BY i.place LIMIT :limit
), {part:claim_locked}
SELECT {Lease} FROM taken WHERE (SELECT n FROM logged) > 0

-- name: settle
-- Settle attempts: running to the state that was decided, fenced by id, worker, token and state.
-- If a cancel was requested after the decision, the row does not change and is decided again.
-- All rows are locked first, one lookup each, in order of id, so that transactions cannot deadlock:
-- an ending that is decided again finds its row locked already. The fence is compared with the
-- locked values. The input columns are carried through every CTE to avoid self-joins.
WITH locked AS MATERIALIZED (
  SELECT i.*, (SELECT {p}now_us()) AS at, job.*
  FROM (SELECT * FROM {set:Settlement} ORDER BY i.id COLLATE "C") AS i
  {part:lock_row}
), settled AS (
  UPDATE {p}job AS job SET
    state = locked.state, worker = NULL, run_at = COALESCE(locked.run_at, job.run_at),
    queue = COALESCE(locked.queue, job.queue),
    lane = CASE WHEN locked.state = 'queued'
                THEN COALESCE(locked.lane, substr(job.lane, 1, length(job.lane) - 1)
                                           || CASE WHEN locked.failures > 0 THEN '1' ELSE '0' END)
                ELSE job.lane END,
    failures = locked.failures, losses = locked.losses, snoozes = locked.snoozes, alone = locked.alone,
    counts = locked.counts, settings = locked.settings,
    died_code = CASE WHEN locked.state = 'dead' THEN COALESCE(locked.code, 'UNKNOWN') END,
    died_class = CASE WHEN locked.state = 'dead' THEN COALESCE(locked.cls, 'unknown') END,
    died_group = CASE WHEN locked.state = 'dead'
                      THEN COALESCE(NULLIF(locked.fingerprint, ''), 'code-' || COALESCE(locked.code, 'UNKNOWN')) END,
    result = locked.result, error = locked.error, choices = locked.choices, reason = locked.reason,
    cost = job.cost + locked.cost,
    finished_at = CASE WHEN locked.finished THEN locked.at END, succeeded_by = locked.succeeded_by,
    cancel_reason = CASE WHEN locked.state = 'queued' THEN NULL ELSE job.cancel_reason END,
    unique_hash = CASE WHEN locked.release_key THEN NULL ELSE job.unique_hash END
  FROM locked
  WHERE job.ctid = locked.row_location AND locked.was_state = 'running' AND locked.was_worker = locked.worker
    AND locked.was_token = locked.token AND (locked.cancel_known OR NOT locked.cancel_requested)
  RETURNING locked.*
), written AS (
  INSERT INTO {p}attempt ({AttemptRow})
  SELECT id, token, generation, attempt, worker, settled_by, started_at, at, ended, verb, code, cls, rule, public, evidence,
         private, fingerprint, run_at, reason, cost, judged
  FROM settled WHERE succeeded_by IS NULL
), events AS (
  SELECT at, event AS type, id AS job_id, batch_id, owner, attempt, token, data FROM settled
), {part:write_events}
SELECT id, token FROM settled WHERE (SELECT n FROM logged) > 0
