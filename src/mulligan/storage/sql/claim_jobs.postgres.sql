-- Claim chosen jobs: queued to running. A closed worker claims nothing.
-- The jobs were chosen without locks, so several workers may want the same ones. SKIP LOCKED: the
-- first gets a job, the others go on to their next choice.
-- `state || ''` keeps the planner from job_for_claim: if statistics say that nothing is queued, it
-- would scan that index for every row instead of looking up the id.
WITH locked AS MATERIALIZED (
  SELECT job.locked_id, job.row_location, job.was_announced
  FROM {set:candidate}
  CROSS JOIN LATERAL (
    SELECT id AS locked_id, ctid AS row_location, announced AS was_announced FROM {p}job
    WHERE id = i.id AND state || '' = 'queued' AND run_at <= {p}now_us()
      AND (deadline_at IS NULL OR deadline_at > {p}now_us())
    FOR UPDATE SKIP LOCKED
  ) AS job
  WHERE EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
  ORDER BY i.place LIMIT :limit
), {part:claim_locked}
SELECT {lease} FROM taken WHERE (SELECT n FROM logged) > 0
