-- Claim a slot of a schedule for a job. No row: the slot has its job.
INSERT INTO {p}slot (schedule, slot, job_id) VALUES (:schedule, :slot, :job_id)
ON CONFLICT (schedule, slot) DO NOTHING RETURNING slot
