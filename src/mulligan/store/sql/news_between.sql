-- What is counted one by one. That an attempt began is told again when it ends.
SELECT at, type, attempt, data FROM {p}event
WHERE id > :cursor AND id <= :top AND bundle IS NULL AND type NOT IN ('job.started', 'job.queued')
