-- Insert many jobs without unique keys whose job.queued events differ only in the job id.
-- The events are known beforehand, so no row is read back. :id is the array of their ids.
WITH like_all AS (
  SELECT NULL AS id, kind, queue, owner, batch_id, now AS created_at, COALESCE(at, now + delay) AS run_at
  FROM {alike:insert} CROSS JOIN (SELECT {p}now_us() AS now) AS clock
), fresh AS (
  {part:new_rows}
), news AS (
  {part:queued}
  FROM like_all WHERE CAST(:announce AS boolean)
), told AS (
  SELECT {p}tell_alike(at, type, CAST(:id AS text[]), batch_id, owner, data) AS n FROM news
)
SELECT id, run_at, created_at,
       CASE WHEN run_at <= created_at AND CAST(:channel AS text) IS NOT NULL
            THEN pg_notify(CAST(:channel AS text), queue) END,
       (SELECT n FROM told)
FROM like_all
