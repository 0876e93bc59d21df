-- Claim like `read_state_and_claim`, but one job; also return when the next job of its lane is due.
-- Nothing is aggregated or sorted, which saves the server a third of the work for an idle worker.
WITH RECURSIVE {part:lanes_with_jobs}, {part:unrestricted_lane}, locked AS MATERIALIZED (
  SELECT ctid AS row_location, announced AS was_announced FROM {p}job AS job
  WHERE state = 'queued' AND lane = (SELECT lane FROM chosen_lane) AND priority = (SELECT priority FROM chosen_lane)
    AND run_at <= {p}now_us() AND {part:lock_next_jobs}
), taken AS (
  UPDATE {p}job SET {part:claim_assignments}
  WHERE ctid = (SELECT row_location FROM locked)
  RETURNING {lease}
), events AS (
  {part:queued_events}
  FROM taken WHERE NOT (SELECT was_announced FROM locked)
  UNION ALL
  {part:started_events}
  FROM taken
), {part:write_events}
SELECT 'lease', chosen_lane.lane, NULL, chosen_lane.priority::bigint, (
  SELECT run_at FROM {p}job AS next WHERE state = 'queued' AND next.lane = chosen_lane.lane AND next.priority = chosen_lane.priority
  ORDER BY run_at, id OFFSET 1 LIMIT 1
), NULL, NULL, taken.* FROM taken, chosen_lane WHERE (SELECT n FROM logged) > 0
UNION ALL SELECT look.*, {no:lease} FROM ({part:claim_state}) AS look
