-- Count the newest deaths of failure groups: by kind, code and class, and by age in hours.
-- After a day, ages are whole days. The time is a parameter: now_us() would be called per row.
SELECT name, kind, died_code, died_class, ago, count(*) FROM (
  SELECT wanted.name, few.kind, few.died_code, few.died_class,
         CASE WHEN finished_at >= CAST(:at_time AS bigint) THEN 0
              WHEN finished_at <= CAST(:at_time AS bigint) - CAST(:hours AS bigint) * 3600000000 THEN CAST(:hours AS bigint)
              WHEN finished_at <= CAST(:at_time AS bigint) - 86400000000
              THEN (CAST(:at_time AS bigint) - finished_at) / 86400000000 * 24
              ELSE (CAST(:at_time AS bigint) - finished_at) / 3600000000 END AS ago
  FROM unnest(CAST(:names AS text[])) AS wanted (name)
  CROSS JOIN LATERAL (
    SELECT kind, died_code, died_class, finished_at FROM {p}job
    WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT :cap
  ) AS few
) AS death
GROUP BY GROUPING SETS ((name, kind, died_code, died_class), (name, ago))
