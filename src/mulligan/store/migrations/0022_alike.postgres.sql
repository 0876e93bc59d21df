-- What tells of one moment, as almost everything does, is put together by functions on whole arrays: a third of the work.
-- The text of a bundle is the same; see store/bundles.py.
CREATE FUNCTION {p}text_of(jobs TEXT[], batches TEXT[], owners TEXT[], attempts BIGINT[], tokens BIGINT[], texts TEXT[])
  RETURNS TEXT LANGUAGE plpgsql STABLE AS $$
DECLARE
  told CONSTANT BOOLEAN := texts[1] = ALL (texts);
  tail TEXT;
BEGIN
  IF num_nonnulls(VARIADIC batches) = 0 AND '' = ALL (owners) THEN
    IF num_nonnulls(VARIADIC tokens) = 0 THEN
      tail := '",null,"",null,null]';
    ELSIF attempts[1] = ALL (attempts) AND tokens[1] = ALL (tokens) THEN
      tail := '",null,"",' || attempts[1] || ',' || tokens[1] || ']';
    END IF;
  END IF;
  IF tail IS NULL THEN
    RETURN (
      SELECT CASE WHEN told THEN texts[1] || E'\n' || string_agg(line, E'\n')
                  ELSE string_agg(data || E'\n' || line, E'\n') END
      FROM (
        SELECT data, {p}line(job_id, batch_id, owner, attempt, token) AS line
        FROM unnest(jobs, batches, owners, attempts, tokens, texts) AS one(job_id, batch_id, owner, attempt, token, data)
      ) AS lines
    );
  END IF;
  IF told THEN
    RETURN texts[1] || E'\n["' || array_to_string(jobs, tail || E'\n["') || tail;
  END IF;
  RETURN (SELECT string_agg(data || E'\n["' || job_id || tail, E'\n') FROM unnest(texts, jobs) AS one(data, job_id));
END $$;

ALTER FUNCTION {p}tell(BIGINT[], TEXT[], TEXT[], TEXT[], TEXT[], BIGINT[], BIGINT[], TEXT[]) RENAME TO tell_apart;

CREATE FUNCTION {p}tell(ats BIGINT[], types TEXT[], jobs TEXT[], batches TEXT[], owners TEXT[], attempts BIGINT[],
                        tokens BIGINT[], texts TEXT[]) RETURNS INTEGER LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  n CONSTANT INTEGER := cardinality(ats);
  ids BIGINT[];
  a INTEGER := 1;
  z INTEGER;
BEGIN
  IF ats IS NULL THEN
    RETURN 0;
  END IF;
  IF ats[1] <> ANY (ats) OR types[1] <> ANY (types) THEN
    RETURN {p}tell_apart(ats, types, jobs, batches, owners, attempts, tokens, texts);
  END IF;
  PERFORM {p}mark_events();
  ids := ARRAY(SELECT nextval('{p}event_id_seq') FROM generate_series(1, n));
  WHILE a <= n LOOP
    z := least(a + 999, n);
    IF ids[z] - ids[a] <> z - a THEN  -- somebody else drew in between: a bundle ends there
      z := (SELECT min(k) FROM generate_series(a, z) AS k WHERE ids[k + 1] IS DISTINCT FROM ids[k] + 1);
    END IF;
    IF a = z THEN
      INSERT INTO {p}event (id, at, type, job_id, batch_id, owner, attempt, token, data)
      VALUES (ids[a], ats[a], types[a], jobs[a], batches[a], owners[a], attempts[a], tokens[a], texts[a]);
    ELSE
      INSERT INTO {p}event (id, at, type, owner, data, bundle)
      VALUES (ids[z], ats[a], types[a], '', {p}text_of(jobs[a:z], batches[a:z], owners[a:z], attempts[a:z], tokens[a:z],
              texts[a:z]), z - a + 1);
    END IF;
    a := z + 1;
  END LOOP;
  RETURN n;
END $$;

-- Bundles are long enough to be compressed when they are written, which took as long as all the rest.
ALTER TABLE {p}event ALTER COLUMN data SET STORAGE EXTERNAL;
