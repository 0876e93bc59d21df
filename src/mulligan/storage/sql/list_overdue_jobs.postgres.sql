-- Lock queued jobs of a lane that were due before a time. SKIP LOCKED: upkeep never waits.
SELECT {job} FROM {p}job WHERE state = 'queued' AND lane = :lane AND run_at <= :before
ORDER BY priority, run_at LIMIT :limit FOR UPDATE SKIP LOCKED
