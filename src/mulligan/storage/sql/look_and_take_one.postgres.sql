-- Claim like `look_and_take`, but one job; also return when the next job of its lane is due.
-- Nothing is aggregated or sorted, which saves the server a third of the work for an idle worker.
WITH RECURSIVE {part:waits}, {part:plain}, locked AS MATERIALIZED (
  SELECT ctid AS locked_at, announced AS was_told FROM {p}job AS job
  WHERE state = 'queued' AND lane = (SELECT lane FROM plain) AND priority = (SELECT priority FROM plain)
    AND run_at <= {p}now_us() AND {part:in_turn}
), taken AS (
  UPDATE {p}job SET {part:becomes}
  WHERE ctid = (SELECT locked_at FROM locked)
  RETURNING {as_lease}
), news AS (
  {part:queued}
  FROM taken WHERE NOT (SELECT was_told FROM locked)
  UNION ALL
  {part:begun}
  FROM taken
), {part:told}
SELECT 'lease', plain.lane, NULL, plain.priority::bigint, (
  SELECT run_at FROM {p}job AS next WHERE state = 'queued' AND next.lane = plain.lane AND next.priority = plain.priority
  ORDER BY run_at, id OFFSET 1 LIMIT 1
), NULL, NULL, taken.* FROM taken, plain WHERE (SELECT n FROM told) > 0
UNION ALL SELECT look.*, {no:lease} FROM ({part:look}) AS look
