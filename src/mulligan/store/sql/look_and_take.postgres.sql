-- `look` and, in the plainest case, `take_due` in one trip: only one (lane, priority) is due, the worker knows it as one
-- without a limit and learned that within `since` and `until`, nothing is closed, no guard is at work and no operator has set a limit.
-- The hold of a dependency that is over still has to be let go, on a ramp. In every other case nothing is taken. The lane is looked up as a value, so that the index gives the order.
WITH RECURSIVE {part:waits}, plain AS MATERIALIZED (
  SELECT min(lane) AS lane, min(priority) AS priority FROM (SELECT * FROM found LIMIT :lanes) AS waits
  WHERE run_at <= {p}now_us()
  HAVING count(*) = 1 AND min(lane) = ANY (CAST(:plain AS text[]))
    AND {part:unhindered}
), locked AS MATERIALIZED (
  SELECT row_number() OVER () AS place, job.locked_id, job.locked_at, job.was_told FROM (
    SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
    WHERE state = 'queued' AND lane = (SELECT lane FROM plain) AND priority = (SELECT priority FROM plain)
      AND run_at <= {p}now_us() AND {part:in_turn}
  ) AS job
), {part:taken}
(SELECT 'lease', NULL, NULL, NULL::bigint, NULL::bigint, NULL, NULL, {lease} FROM leased WHERE (SELECT n FROM told) > 0 ORDER BY place)
UNION ALL SELECT look.*, {no:lease} FROM ({part:look}) AS look
