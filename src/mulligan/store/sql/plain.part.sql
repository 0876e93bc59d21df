-- The only (lane, priority) that is due, where the worker knows it as one without a limit and learned that within `since` and `until`,
-- nothing is closed, no guard is at work and no operator has set a limit. The hold of a dependency that is over still has to be let go, on
-- a ramp. In every other case none.
plain AS MATERIALIZED (
  SELECT min(lane) AS lane, min(priority) AS priority FROM (SELECT * FROM found LIMIT :lanes) AS waits
  WHERE run_at <= {p}now_us()
  HAVING count(*) = 1 AND min(lane) = ANY (CAST(:plain AS text[]))
    AND {part:unhindered}
)
