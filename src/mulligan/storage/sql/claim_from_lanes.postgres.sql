-- Claim the next due jobs of lanes, of each (lane, priority) a number: queued to running.
-- SKIP LOCKED: workers that claim at once get different jobs. A closed worker claims nothing.
-- `since` skips the index entries of jobs that were claimed lately, see `due_jobs`.
WITH locked AS MATERIALIZED (
  SELECT job.locked_id, job.row_location, job.was_announced
  FROM {set:lane_share}
  CROSS JOIN LATERAL (
    SELECT id AS locked_id, ctid AS row_location, announced AS was_announced FROM {p}job
    WHERE state = 'queued' AND lane = i.lane AND priority = CAST(i.priority AS integer)
      AND run_at >= i.since AND run_at <= {p}now_us() AND (deadline_at IS NULL OR deadline_at > {p}now_us())
    ORDER BY run_at, id LIMIT i.jobs
    FOR UPDATE SKIP LOCKED
  ) AS job
  WHERE EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
), {part:claim_locked}
SELECT {lease} FROM taken WHERE (SELECT n FROM logged) > 0
