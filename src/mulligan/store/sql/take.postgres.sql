-- queued → running. Candidates were chosen unlocked, so several workers may want the same rows: whoever holds
-- the lock wins, the others pass on to their next choice, and nobody waits. A closed worker takes nothing.
-- One lookup by id for each that is wanted, in their order, until there are enough: `state || ''` keeps the planner from
-- the index of the waiting, which it would read from end to end for every row when it believes that nothing waits.
WITH locked AS MATERIALIZED (
  SELECT job.locked_id, job.locked_at, job.was_told
  FROM {set:wanted}
  CROSS JOIN LATERAL (
    SELECT id AS locked_id, ctid AS locked_at, announced AS was_told FROM {p}job
    WHERE id = i.id AND state || '' = 'queued' AND run_at <= {p}now_us()
      AND (deadline_at IS NULL OR deadline_at > {p}now_us())
    FOR UPDATE SKIP LOCKED
  ) AS job
  WHERE EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
  ORDER BY i.place LIMIT :most
), {part:taken}
SELECT {lease} FROM taken WHERE (SELECT n FROM told) > 0
