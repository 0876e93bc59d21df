-- List queued jobs of a lane that were due before a time.
SELECT {job} FROM {p}job WHERE state = 'queued' AND lane = :lane AND run_at <= :before ORDER BY priority, run_at LIMIT :limit
