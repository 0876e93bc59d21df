-- What is counted of many at once. That an attempt began is told again when it ends.
SELECT id, at, type, data, bundle FROM {p}event
WHERE id > :cursor AND id < :beyond AND id - bundle < :top AND bundle IS NOT NULL AND type <> 'job.started'
