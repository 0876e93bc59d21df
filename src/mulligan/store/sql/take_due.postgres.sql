-- queued → running, when only one (lane, priority) is due: chosen and locked in one reading, since nothing is to be mixed.
WITH locked AS MATERIALIZED (
  SELECT row_number() OVER () AS place, job.locked_id, job.locked_at, job.was_told FROM (
    SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
    WHERE state = 'queued' AND lane = :lane AND priority = CAST(:priority AS integer) AND run_at <= {p}now_us()
      AND {part:in_turn}
  ) AS job
), {part:taken}
SELECT {lease} FROM leased WHERE (SELECT n FROM told) > 0 ORDER BY place
