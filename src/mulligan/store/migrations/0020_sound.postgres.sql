-- What must hold of a job in each state, in one constraint instead of six; see the same step for SQLite.
ALTER TABLE {p}job
  DROP CONSTRAINT job_state, DROP CONSTRAINT job_lease, DROP CONSTRAINT job_result, DROP CONSTRAINT job_error,
  DROP CONSTRAINT job_finished, DROP CONSTRAINT job_choices,
  ADD CONSTRAINT job_sound CHECK (CASE state
    WHEN 'running' THEN worker IS NOT NULL AND finished_at IS NULL AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN 'succeeded' THEN worker IS NULL AND finished_at IS NOT NULL AND error IS NULL AND choices IS NULL
    WHEN 'queued' THEN worker IS NULL AND finished_at IS NULL AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN 'dead' THEN worker IS NULL AND finished_at IS NOT NULL AND result IS NULL AND error IS NOT NULL AND choices IS NULL
    WHEN 'cancelled' THEN worker IS NULL AND finished_at IS NOT NULL AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN 'parked' THEN worker IS NULL AND finished_at IS NULL AND result IS NULL AND error IS NULL
    ELSE false END);
