-- Select the lane and priority that may be claimed without further checks, or none.
-- There is one if exactly one lane has due jobs, the worker knows it as a lane without limits, that
-- knowledge is valid now (`since` to `until`), and no gate, guard or operator's limit is in force.
chosen_lane AS MATERIALIZED (
  SELECT min(lane) AS lane, min(priority) AS priority FROM (SELECT * FROM found LIMIT :lanes) AS waits
  WHERE run_at <= {p}now_us()
  HAVING count(*) = 1 AND min(lane) = ANY (CAST(:unlimited AS text[]))
    AND {part:no_restrictions}
)
