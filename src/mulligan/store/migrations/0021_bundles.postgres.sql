-- Events that tell the same of many jobs at the same moment are one row. Its id is the last of theirs, `bundle` says how
-- many they are, and `data` has a line for each; see store/bundles.py. A job's story finds them by their moment.
ALTER TABLE {p}event ADD COLUMN bundle INTEGER;
CREATE INDEX event_for_bundles ON {p}event (at) WHERE bundle IS NOT NULL;

CREATE FUNCTION {p}line(job_id TEXT, batch_id TEXT, owner TEXT, attempt BIGINT, token BIGINT) RETURNS TEXT
  LANGUAGE sql STABLE AS $$
SELECT '["' || job_id || '",' || CASE WHEN batch_id IS NULL THEN 'null' ELSE CAST(to_json(batch_id) AS TEXT) END || ','
  || CASE owner WHEN '' THEN '""' ELSE CAST(to_json(owner) AS TEXT) END || ','
  || CASE WHEN token IS NULL THEN 'null,null]' ELSE attempt || ',' || token || ']' END $$;

-- One array per column. Several who write at once draw ids in turns: a bundle ends where the next id is somebody else's.
CREATE FUNCTION {p}tell(ats BIGINT[], types TEXT[], jobs TEXT[], batches TEXT[], owners TEXT[], attempts BIGINT[],
                        tokens BIGINT[], texts TEXT[]) RETURNS INTEGER LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF ats IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM {p}mark_events();
  INSERT INTO {p}event (id, at, type, job_id, batch_id, owner, attempt, token, data, bundle)
  SELECT max(id), at, type,
         CASE count(*) WHEN 1 THEN min(job_id) END, CASE count(*) WHEN 1 THEN min(batch_id) END,
         CASE count(*) WHEN 1 THEN min(owner) ELSE '' END,
         CASE count(*) WHEN 1 THEN min(attempt) END, CASE count(*) WHEN 1 THEN min(token) END,
         CASE WHEN count(*) = 1 THEN min(data)
              WHEN min(data COLLATE "C") = max(data COLLATE "C") THEN min(data) || E'\n' || string_agg(line, E'\n' ORDER BY id)
              ELSE string_agg(data || E'\n' || line, E'\n' ORDER BY id) END,
         NULLIF(count(*), 1)
  FROM (
    SELECT *, {p}line(job_id, batch_id, owner, attempt, token) AS line,
           id - row_number() OVER alike AS stretch, (row_number() OVER alike - 1) / 1000 AS thousand
    FROM (
      SELECT nextval('{p}event_id_seq') AS id, news.*
      FROM unnest(ats, types, jobs, batches, owners, attempts, tokens, texts)
           AS news(at, type, job_id, batch_id, owner, attempt, token, data)
    ) AS numbered WINDOW alike AS (PARTITION BY type, at ORDER BY id)
  ) AS lines
  GROUP BY type, at, stretch, thousand;
  RETURN cardinality(ats);
END $$;
