-- Find jobs of callers' transactions whose job.queued event is not written yet.
SELECT id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :limit
