-- The same for many jobs whose events tell the same, and without unique keys: what is told of all of them is known
-- beforehand, so that no row is read back. :id has their ids.
WITH like_all AS (
  SELECT NULL AS id, kind, queue, owner, batch_id, now AS created_at, COALESCE(at, now + delay) AS run_at
  FROM {alike:insert} CROSS JOIN (SELECT {p}now_us() AS now) AS clock
), fresh AS (
  {part:new_rows}
), news AS (
  {part:queued}
  FROM like_all WHERE CAST(:announce AS boolean)
), told AS (
  SELECT {p}tell(array_fill(at, n), array_fill(type, n), ids, array_fill(batch_id, n), array_fill(owner, n),
                 array_fill(attempt, n), array_fill(token, n), array_fill(data, n)) AS n
  FROM news CROSS JOIN (
    SELECT ids, ARRAY[cardinality(ids)] AS n FROM (SELECT CAST(:id AS text[]) AS ids) AS given
  ) AS every
)
SELECT id, run_at, created_at,
       CASE WHEN run_at <= created_at AND CAST(:channel AS text) IS NOT NULL
            THEN pg_notify(CAST(:channel AS text), queue) END,
       (SELECT n FROM told)
FROM like_all
