-- Mark inserted jobs as announced and return what their job.queued events need.
UPDATE {p}job SET announced = 1 WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id, batch_id, owner, kind, queue, run_at, created_at
