-- That an attempt of it has begun, as an event.
SELECT started_at, 'job.started', id, batch_id, owner, attempt, token, '{"worker":"' || worker || '"}'
