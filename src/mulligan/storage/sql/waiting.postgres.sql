-- Lock queued jobs of a lane that were due before a time. SKIP LOCKED: upkeep never waits.
SELECT {row} FROM {p}job WHERE state = 'queued' AND lane = :lane AND run_at <= :before
ORDER BY priority, run_at LIMIT :most FOR UPDATE SKIP LOCKED
