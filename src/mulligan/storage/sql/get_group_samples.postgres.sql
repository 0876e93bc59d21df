-- Read the job of each failure group that died last.
SELECT wanted.name, newest.* FROM unnest(CAST(:names AS text[])) AS wanted (name)
CROSS JOIN LATERAL (
  SELECT {job} FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT 1
) AS newest
