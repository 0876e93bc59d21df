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

-- `tell` for many jobs of which everything is told alike: nothing must be compared to find that out.
CREATE FUNCTION {p}tell_alike(moment BIGINT, what TEXT, jobs TEXT[], batch TEXT, whose TEXT, said TEXT) RETURNS INTEGER
  LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  n CONSTANT INTEGER := cardinality(jobs);
  tail CONSTANT TEXT := substr({p}line('', batch, whose, NULL, NULL), 3);
  ids BIGINT[];
  a INTEGER := 1;
  z INTEGER;
BEGIN
  PERFORM {p}mark_events();
  ids := ARRAY(SELECT nextval('{p}event_id_seq') FROM generate_series(1, n));
  WHILE a <= n LOOP
    z := least(a + 999, n);
    IF ids[z] - ids[a] <> z - a THEN  -- somebody else drew in between: a bundle ends there
      z := (SELECT min(k) FROM generate_series(a, z) AS k WHERE ids[k + 1] IS DISTINCT FROM ids[k] + 1);
    END IF;
    IF a = z THEN
      INSERT INTO {p}event (id, at, type, job_id, batch_id, owner, data)
      VALUES (ids[a], moment, what, jobs[a], batch, whose, said);
    ELSE
      INSERT INTO {p}event (id, at, type, owner, data, bundle)
      VALUES (ids[z], moment, what, '', said || E'\n["' || array_to_string(jobs[a:z], tail || E'\n["') || tail, z - a + 1);
    END IF;
    a := z + 1;
  END LOOP;
  RETURN n;
END $$;
