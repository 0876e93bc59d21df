-- Read bundles of events for statistics. job.started is left out: the end of the attempt covers it.
SELECT id, at, type, data, bundle FROM {p}event
WHERE id > :cursor AND id < :upper AND id - bundle < :top AND bundle IS NOT NULL AND type <> 'job.started'
