-- Mark jobs as announced, in the transaction that writes their job.queued events.
UPDATE {p}job SET announced = 1 WHERE id IN (SELECT value FROM json_each(:ids))
