-- Due jobs of one (lane, priority) in their order. What somebody else has locked is passed over, and nobody waits. A closed
-- worker takes nothing.
(deadline_at IS NULL OR deadline_at > {p}now_us())
AND EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
ORDER BY run_at, id LIMIT :most
FOR UPDATE OF job SKIP LOCKED
