-- The same constraints in fewer words: the server reads the text of each of them anew for every statement that writes a
-- job, which took longer than to write the row. Nothing is refused that was not, and nothing is let in that was refused.
ALTER TABLE {p}job
  DROP CONSTRAINT job_sound, DROP CONSTRAINT job_counters, DROP CONSTRAINT job_priority,
  DROP CONSTRAINT IF EXISTS job_check, DROP CONSTRAINT IF EXISTS job_check1, DROP CONSTRAINT IF EXISTS job_check2,
  ADD CONSTRAINT job_sound CHECK (
    (state = 'running') = (worker IS NOT NULL) AND (state = 'dead') = (error IS NOT NULL)
    AND state = ANY (CASE WHEN finished_at IS NULL THEN '{queued,running,parked}'::text[]
                          ELSE '{succeeded,dead,cancelled}' END)
    AND (result IS NULL OR state = 'succeeded') AND (choices IS NULL OR state = 'parked')
    AND (error IS NOT NULL OR COALESCE(died_code, died_class, died_group) IS NULL)),
  ADD CONSTRAINT job_priority CHECK (abs(priority) <= 9),
  ADD CONSTRAINT job_counters CHECK (LEAST(failures, losses, snoozes, attempt, generation - 1) >= 0 AND attempt <= token);
