-- Mark jobs as announced, in the transaction that writes their job.queued events.
UPDATE {p}job SET announced = true WHERE id = ANY(CAST(:ids AS text[]))
