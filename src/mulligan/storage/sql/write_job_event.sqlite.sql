-- Write one event of a job.
INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
VALUES (:now, :event, :id, :batch_id, :owner, :attempt, :token, :data)
