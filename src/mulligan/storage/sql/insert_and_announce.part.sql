-- Insert jobs, write their job.queued events, and notify each queue that has a due job once.
fresh AS (
  {part:insert_rows}
  ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING
  RETURNING id, queue, kind, owner, batch_id, run_at, created_at
), events AS (
  {part:queued_events}
  FROM fresh WHERE CAST(:announce AS boolean)
), {part:write_events}, notified AS (
  SELECT pg_notify(CAST(:channel AS text), queue)
  FROM (SELECT DISTINCT queue FROM fresh WHERE run_at <= created_at) AS due WHERE CAST(:channel AS text) IS NOT NULL
)
