-- Write one event.
INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, actor, data)
VALUES (:now, :type, :job_id, :batch_id, :owner, :attempt, :token, :actor, :data)
