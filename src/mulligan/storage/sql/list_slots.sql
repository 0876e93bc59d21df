-- List slots of schedules in order, for `doctor --verify`.
SELECT schedule, slot, job_id FROM {p}slot WHERE (schedule, slot) > (:schedule, CAST(:slot AS BIGINT))
ORDER BY schedule, slot LIMIT :limit
