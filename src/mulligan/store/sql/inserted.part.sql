-- The rows, their `job.queued` events, one hint per queue.
fresh AS (
  INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, created_at, deadline_at, deadline_span,
                      announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                      batch_id, must_have, trace, payload)
  SELECT id, kind, queue, owner, priority, lane, uses,
         COALESCE(at, {p}now_us() + delay), {p}now_us(),
         COALESCE(deadline_fixed, {p}now_us() + deadline_span),
         COALESCE(deadline_span, deadline_fixed - {p}now_us()),
         CAST(:announce AS boolean), max_retries, policy, timeout, unique_key, unique_hash, unique_cover,
         {p}now_us() + unique_for, batch_id, must_have, trace, payload
  FROM {set:insert}
  ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING
  RETURNING id, queue, kind, owner, batch_id, run_at, created_at
), news AS (
  {part:queued}
  FROM fresh WHERE CAST(:announce AS boolean)
), {part:told}, hinted AS (
  SELECT pg_notify(CAST(:channel AS text), queue)
  FROM (SELECT DISTINCT queue FROM fresh WHERE run_at <= {p}now_us()) AS due WHERE CAST(:channel AS text) IS NOT NULL
)
