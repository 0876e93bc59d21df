-- Read the leases that `claim_jobs` will create from these jobs, if they are still queued and due.
-- The columns of a lease as they will be written, between the rowid and `announced`.
SELECT rowid, id, kind, queue, owner, :worker AS worker, token + 1, attempt + 1, generation, priority, payload, uses, failures, losses,
  snoozes, max_retries, policy, timeout, deadline_at, created_at, run_at, :now, COALESCE(first_started_at, :now), alone,
  batch_id, choice, unique_key, unique_cover, cancel_reason, counts, settings, trace, announced
FROM {p}job
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued' AND run_at <= :now
  AND (deadline_at IS NULL OR deadline_at > :now)
