-- Claim the next jobs of a lane like `claim_from_lane`, from the run_at where the last claim ended.
-- Otherwise the scan would pass all index entries of jobs claimed lately, which are most of them if
-- jobs are short. Used only while no gate, guard or operator's limit is in force.
WITH clock AS MATERIALIZED (
  SELECT {p}now_us() AS now WHERE {part:no_restrictions}
), locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS row_location, announced AS was_announced FROM {p}job AS job
  WHERE state = 'queued' AND lane = :lane AND priority = CAST(:priority AS integer)
    AND run_at >= CAST(:run_at AS bigint) AND run_at <= (SELECT now FROM clock)
    AND {part:lock_next_jobs}
), {part:claim_locked}
SELECT {lease} FROM taken WHERE (SELECT n FROM logged) > 0 ORDER BY run_at, id
