-- Store indexed arguments of jobs.
INSERT INTO {p}job_arg (name, value, job_id, kind) SELECT name, value, job_id, kind FROM {set:arg}
ON CONFLICT (name, value, job_id) DO NOTHING
