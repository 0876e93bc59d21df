-- queued → running, when only one (lane, priority) is due: chosen and locked in one reading, since nothing is to be mixed.
-- What somebody else has locked is passed over, and nobody waits. A closed worker takes nothing.
WITH locked AS MATERIALIZED (
  SELECT row_number() OVER () AS place, job.locked_id, job.locked_at, job.was_told FROM (
    SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job AS job
    WHERE state = 'queued' AND lane = :lane AND priority = CAST(:priority AS integer) AND run_at <= {p}now_us()
      AND (deadline_at IS NULL OR deadline_at > {p}now_us())
      AND EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
    ORDER BY run_at, id LIMIT :most
    FOR UPDATE OF job SKIP LOCKED
  ) AS job
), {part:taken}
SELECT {lease} FROM leased WHERE (SELECT n FROM told) > 0 ORDER BY place
