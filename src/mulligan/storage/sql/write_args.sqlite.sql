-- Store one indexed argument of a job.
INSERT INTO {p}job_arg (name, value, job_id, kind) VALUES (:name, :value, :job_id, :kind)
ON CONFLICT (name, value, job_id) DO NOTHING
