-- Claim the next jobs of a lane like `take_due`, starting at the run_at where the last claim ended.
-- Otherwise the scan would pass all index entries of jobs claimed lately, which are most of them if
-- jobs are short. Used only while no gate, guard or operator's limit is in force.
WITH plain AS MATERIALIZED (
  SELECT {p}now_us() AS now WHERE {part:unhindered}
), locked AS MATERIALIZED (
  SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
  WHERE state = 'queued' AND lane = :lane AND priority = CAST(:priority AS integer)
    AND run_at >= CAST(:run_at AS bigint) AND run_at <= (SELECT now FROM plain)
    AND {part:in_turn}
), {part:taken}
SELECT {lease} FROM taken WHERE (SELECT n FROM told) > 0 ORDER BY run_at, id
