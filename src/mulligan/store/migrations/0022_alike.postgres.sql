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
  first BIGINT;
  last BIGINT;
BEGIN
  IF ats IS NULL THEN
    RETURN 0;
  END IF;
  IF n = 1 THEN
    PERFORM {p}mark_events();
    INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
    VALUES (ats[1], types[1], jobs[1], batches[1], owners[1], attempts[1], tokens[1], texts[1]);
    RETURN 1;
  END IF;
  IF ats[1] <> ANY (ats) OR types[1] <> ANY (types) THEN
    RETURN {p}tell_apart(ats, types, jobs, batches, owners, attempts, tokens, texts);
  END IF;
  PERFORM {p}mark_events();
  FOR a IN 1..n BY 1000 LOOP
    SELECT min(id), max(id) INTO first, last
    FROM (SELECT nextval('{p}event_id_seq') AS id FROM generate_series(a, least(a + 999, n))) AS drawn;
    IF last - first <> least(999, n - a) THEN  -- somebody else drew in between: these numbers stay empty
      PERFORM {p}tell_apart(ats[a:a+999], types[a:a+999], jobs[a:a+999], batches[a:a+999], owners[a:a+999],
                            attempts[a:a+999], tokens[a:a+999], texts[a:a+999]);
    ELSIF first = last THEN
      INSERT INTO {p}event (id, at, type, job_id, batch_id, owner, attempt, token, data)
      VALUES (last, ats[a], types[a], jobs[a], batches[a], owners[a], attempts[a], tokens[a], texts[a]);
    ELSE
      INSERT INTO {p}event (id, at, type, owner, data, bundle)
      VALUES (last, ats[a], types[a], '', {p}text_of(jobs[a:a+999], batches[a:a+999], owners[a:a+999],
              attempts[a:a+999], tokens[a:a+999], texts[a:a+999]), last - first + 1);
    END IF;
  END LOOP;
  RETURN n;
END $$;

-- Bundles are long enough to be compressed when they are written, which took as long as all the rest.
ALTER TABLE {p}event ALTER COLUMN data SET STORAGE EXTERNAL;
