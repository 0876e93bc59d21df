-- Claim the next jobs when only one lane and priority is due: choose and lock in one scan.
WITH locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
  WHERE state = 'queued' AND lane = :lane AND priority = CAST(:priority AS integer) AND run_at <= {p}now_us()
    AND {part:in_turn}
), {part:taken}
SELECT {lease} FROM taken WHERE (SELECT n FROM told) > 0 ORDER BY run_at, id
