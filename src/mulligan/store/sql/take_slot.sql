-- No row: this slot has its job already.
INSERT INTO {p}slot (schedule, slot, job_id) VALUES (:schedule, :slot, :job_id)
ON CONFLICT (schedule, slot) DO NOTHING RETURNING slot
