-- Insert many jobs without unique keys whose job.queued events differ only in the job id.
-- The events are known beforehand, so no row is read back. :id is the array of their ids.
WITH shared AS (
  SELECT NULL AS id, kind, queue, owner, batch_id, now AS created_at, COALESCE(at, now + delay) AS run_at
  FROM {shared:insert} CROSS JOIN (SELECT {p}now_us() AS now) AS clock
), fresh AS (
  {part:insert_rows}
), events AS (
  {part:queued_events}
  FROM shared WHERE CAST(:announce AS boolean)
), logged AS (
  SELECT {p}write_uniform_events(at, type, CAST(:id AS text[]), batch_id, owner, data) AS n FROM events
)
SELECT id, run_at, created_at,
       CASE WHEN run_at <= created_at AND CAST(:channel AS text) IS NOT NULL
            THEN pg_notify(CAST(:channel AS text), queue) END,
       (SELECT n FROM logged)
FROM shared
