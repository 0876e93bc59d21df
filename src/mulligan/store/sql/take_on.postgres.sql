-- `take_due`, on from where the last one ended, while what was seen then may still be believed and nothing has been closed
-- or limited since: what left the index lately would be walked over once more, and with many short jobs it is most of it.
WITH plain AS MATERIALIZED (
  SELECT {p}now_us() AS now WHERE {part:unhindered}
), locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
  WHERE state = 'queued' AND lane = :lane AND priority = CAST(:priority AS integer)
    AND run_at >= CAST(:run_at AS bigint) AND run_at <= (SELECT now FROM plain)
    AND {part:in_turn}
), {part:taken}
SELECT {lease} FROM taken WHERE (SELECT n FROM told) > 0 ORDER BY run_at, id
