-- Write the job.queued event of one new job.
INSERT INTO {p}event (at, type, job_id, batch_id, owner, data)
VALUES (:now, 'job.queued', :id, :batch_id, :owner,
        json_object('kind', :kind, 'queue', :queue, 'run_at', COALESCE(:run_at, :now + :delay)))
