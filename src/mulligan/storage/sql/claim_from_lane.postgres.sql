-- Claim the next jobs when only one lane and priority is due: choose and lock in one scan.
WITH locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS row_location, announced AS was_announced FROM {p}job AS job
  WHERE state = 'queued' AND lane = :lane AND priority = CAST(:priority AS integer) AND run_at <= {p}now_us()
    AND {part:lock_next_jobs}
), {part:claim_locked}
SELECT {lease} FROM taken WHERE (SELECT n FROM logged) > 0 ORDER BY run_at, id
