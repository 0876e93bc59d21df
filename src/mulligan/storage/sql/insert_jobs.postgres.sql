-- Insert jobs with their job.queued events, and notify each queue that has a due job once.
-- A job whose unique key is held is not inserted: the count is lower, and the caller looks up the holder.
-- The clock is read once for all rows.
WITH fresh AS (
  INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, created_at, deadline_at, deadline_span,
                      announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                      batch_id, must_have, trace, payload)
  SELECT id, kind, queue, owner, priority,
         queue || '|' || kind || '|' || uses || '|' || CASE share WHEN '' THEN '' ELSE share || '|' END || '0',
         uses, COALESCE(run_at, now + delay), now, COALESCE(deadline_at, now + deadline),
         COALESCE(deadline, deadline_at - now), CAST(:announce AS boolean), max_retries, policy, timeout,
         unique_key, unique_hash, unique_cover, now + unique_for, batch_id, must_have, trace, payload
  FROM {set:new_job} CROSS JOIN (SELECT {p}now_us() AS now) AS clock
  ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING
  RETURNING id, queue, kind, owner, batch_id, run_at, created_at
), events AS (
  {part:queued_events}
  FROM fresh WHERE CAST(:announce AS boolean)
), {part:write_events}, notified AS (
  SELECT pg_notify(CAST(:channel AS text), queue)
  FROM (SELECT DISTINCT queue FROM fresh WHERE run_at <= created_at) AS due WHERE CAST(:channel AS text) IS NOT NULL
)
SELECT count(*), min(created_at), (SELECT count(*) FROM notified), (SELECT n FROM logged) FROM fresh
