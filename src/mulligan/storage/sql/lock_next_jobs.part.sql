-- Conditions and order of a claim within one lane and priority, with a row lock.
-- SKIP LOCKED: workers that claim at once get different jobs. A closed worker claims nothing.
(deadline_at IS NULL OR deadline_at > {p}now_us())
AND EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
ORDER BY run_at, id LIMIT :limit
FOR UPDATE OF job SKIP LOCKED
