-- Lock waiting jobs whose deadline has passed. SKIP LOCKED: upkeep never waits.
SELECT {job} FROM {p}job
WHERE deadline_at IS NOT NULL AND state IN ('queued', 'parked') AND deadline_at <= {p}now_us()
ORDER BY deadline_at LIMIT :limit FOR UPDATE SKIP LOCKED
