-- Columns of a lease as `claim_jobs` will write them, between the rowid and `announced`.
SELECT rowid, id, kind, queue, owner, :worker AS worker, token + 1, attempt + 1, generation, priority, payload, uses, failures, losses,
  snoozes, max_retries, policy, timeout, deadline_at, created_at, run_at, :now, COALESCE(first_started_at, :now), alone,
  batch_id, choice, unique_key, unique_cover, cancel_reason, counts, settings, trace, announced
FROM {p}job
