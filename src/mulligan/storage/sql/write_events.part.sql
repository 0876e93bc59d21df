-- Write the rows of `events` to the event table, bundled where possible.
-- The outer query must read `n`: PostgreSQL skips a CTE that nothing refers to.
logged AS (
  SELECT {p}write_events(array_agg(at), array_agg(type), array_agg(job_id), array_agg(batch_id), array_agg(owner),
                 array_agg(attempt), array_agg(token), array_agg(data)) AS n
  FROM events
)
