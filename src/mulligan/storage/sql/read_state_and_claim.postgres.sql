-- Read like `read_claim_state` and, if nothing restricts the claim, claim like `claim_from_lane`.
-- The lane is a scalar subquery, so that the index delivers the jobs in order.
WITH RECURSIVE {part:lanes_with_jobs}, {part:unrestricted_lane}, locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS row_location, announced AS was_announced FROM {p}job AS job
  WHERE state = 'queued' AND lane = (SELECT lane FROM chosen_lane) AND priority = (SELECT priority FROM chosen_lane)
    AND run_at <= {p}now_us() AND {part:lock_next_jobs}
), {part:claim_locked}
(SELECT 'lease', NULL, NULL, NULL::bigint, NULL::bigint, NULL, NULL, {lease} FROM taken WHERE (SELECT n FROM logged) > 0 ORDER BY run_at, id)
UNION ALL SELECT look.*, {no:lease} FROM ({part:claim_state}) AS look
