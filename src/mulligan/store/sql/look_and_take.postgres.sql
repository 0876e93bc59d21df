-- `look` and, in the plainest case, `take_due` in one trip. The lane is looked up as a value, so that the index gives the order.
WITH RECURSIVE {part:waits}, {part:plain}, locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
  WHERE state = 'queued' AND lane = (SELECT lane FROM plain) AND priority = (SELECT priority FROM plain)
    AND run_at <= {p}now_us() AND {part:in_turn}
), {part:taken}
(SELECT 'lease', NULL, NULL, NULL::bigint, NULL::bigint, NULL, NULL, {lease} FROM taken WHERE (SELECT n FROM told) > 0 ORDER BY run_at, id)
UNION ALL SELECT look.*, {no:lease} FROM ({part:look}) AS look
