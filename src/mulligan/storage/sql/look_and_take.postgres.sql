-- Read like `look` and, if nothing restricts the claim, claim like `take_due` in the same trip.
-- The lane is a scalar subquery, so that the index delivers the jobs in order.
WITH RECURSIVE {part:waits}, {part:plain}, locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
  WHERE state = 'queued' AND lane = (SELECT lane FROM plain) AND priority = (SELECT priority FROM plain)
    AND run_at <= {p}now_us() AND {part:in_turn}
), {part:taken}
(SELECT 'lease', NULL, NULL, NULL::bigint, NULL::bigint, NULL, NULL, {lease} FROM taken WHERE (SELECT n FROM told) > 0 ORDER BY run_at, id)
UNION ALL SELECT look.*, {no:lease} FROM ({part:look}) AS look
