-- Statements about workers, their leases, and retention of all features, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- fragment: claim_assignments
-- Assignments that turn a queued job into a running one.
-- The subqueries make the server call the clock once per statement instead of once per row.
state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
started_at = (SELECT {p}now_us()), first_started_at = COALESCE(first_started_at, (SELECT {p}now_us())), announced = true,
progress = NULL, progress_message = '', waits = NULL,
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

-- fragment: started_events
-- Select the job.started events of claimed jobs.
SELECT started_at, 'job.started', id, batch_id, owner, attempt, token, '{"worker":"' || worker || '","retries":' || failures || '}'

-- name: claim_from_lanes
-- Claim the next due jobs of lanes, of each (lane, priority) a number: queued to running.
-- SKIP LOCKED: workers that claim at once get different jobs. A closed worker claims nothing.
-- `since` skips the index entries of jobs that were claimed recently, see `due_jobs`.
WITH locked AS MATERIALIZED (
  SELECT job.locked_id, job.row_location, job.was_announced
  FROM unnest(CAST(:lane AS text[]), CAST(:priority AS bigint[]), CAST(:since AS bigint[]), CAST(:jobs AS bigint[]))
    AS i(lane, priority, since, jobs)
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
  FROM unnest(CAST(:ids AS text[])) WITH ORDINALITY AS i(id, place)
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
-- A running job is one that has a worker. If a cancel was requested after the decision, the row does
-- not change and is decided again.
-- The caller sorts the set by id, and each row is locked before it is updated, so transactions cannot
-- deadlock. The fence is compared with the locked row; OFFSET 0 keeps the planner from testing it
-- first: a row that is decided again must be locked. Because of the two equations the planner expects
-- few rows and does not scan the table.
-- `events` holds the settled attempts, with what their events need. The first row returned is their
-- number. If it is not :rows, their fences follow.
WITH events AS (
  UPDATE {p}job SET
    state = i.state, worker = NULL, run_at = COALESCE(i.run_at, job.run_at),
    ready_at = GREATEST(i.run_at, at),
    queue = COALESCE(i.queue, job.queue),
    lane = CASE WHEN i.state = 'queued'
                THEN COALESCE(i.lane, left(job.lane, -1) || least(i.failures, 1)) ELSE job.lane END,
    failures = i.failures, losses = i.losses, snoozes = i.snoozes, alone = i.alone,
    counts = i.counts, settings = i.settings, deadline_at = CASE WHEN i.verb = 'undo' THEN NULL ELSE deadline_at END,
    died_code = CASE WHEN i.state = 'dead' THEN COALESCE(code, 'UNKNOWN') END,
    died_class = CASE WHEN i.state = 'dead' THEN COALESCE(cls, 'unknown') END,
    died_group = CASE WHEN i.state = 'dead'
                      THEN COALESCE(NULLIF(fingerprint, ''), 'code-' || COALESCE(code, 'UNKNOWN')) END,
    result = i.result, error = i.error, choices = i.choices, reason = COALESCE(i.reason, 'returned'),
    cost = job.cost + i.cost,
    finished_at = CASE WHEN i.state IN ('succeeded', 'dead', 'cancelled') THEN at END,
    succeeded_by = CASE WHEN ended IS NULL THEN i.worker END,
    cancel_reason = CASE WHEN i.state <> 'queued' THEN cancel END,
    unique_hash = CASE WHEN NOT release_key THEN unique_hash END
  FROM {set:Settlement}, LATERAL (
    SELECT ctid AS tid, worker AS holder, token AS fence, cancel_reason AS cancel, (SELECT {p}now_us()) AS at
    FROM {p}job WHERE id = i.id FOR UPDATE OFFSET 0
  ) AS held
  WHERE job.ctid = tid AND holder = i.worker AND fence = i.token AND (cancel IS NULL OR cancel_known)
  RETURNING i.id AS job_id, i.token, generation, attempt, started_at, owner, batch_id, at, i.worker, settled_by, ended, verb,
    event AS type, data, code, cls, rule, public, evidence, private, fingerprint, i.run_at, i.reason, i.cost, judged
), written AS (
  INSERT INTO {p}attempt ({AttemptRow})
  SELECT job_id, token, generation, attempt, worker, settled_by, started_at, at, ended, verb, code, cls, rule, public, evidence,
         private, fingerprint, run_at, reason, cost, judged,
         COALESCE((SELECT release FROM {p}worker WHERE id = events.worker), '')
  FROM events WHERE ended IS NOT NULL
), {part:write_events}
SELECT NULL, n FROM logged UNION ALL SELECT job_id, token FROM events, logged WHERE n <> :rows

-- name: write_attempt_logs
-- Write the logs of failed attempts.
INSERT INTO {p}attempt_log (job_id, token, at, records, stacks)
SELECT job_id, token, {p}now_us(), records, stacks FROM {set:AttemptLogRow}
ON CONFLICT DO NOTHING
