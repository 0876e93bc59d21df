-- Select the job.started events of claimed jobs.
SELECT started_at, 'job.started', id, batch_id, owner, attempt, token, '{"worker":"' || worker || '"}'
