-- Read single events for statistics. job.started is left out: the end of the attempt covers it.
-- job.queued is counted by `count_queued_events`.
SELECT at, type, attempt, data FROM {p}event
WHERE id > :cursor AND id <= :top AND bundle IS NULL AND type NOT IN ('job.started', 'job.queued')
