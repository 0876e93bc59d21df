-- The newest deaths of a group, counted by kind, code, class and how many hours ago. The moment is given: as a function
-- it would be asked for each of them.
SELECT kind, died_code, died_class,
       CASE WHEN finished_at >= CAST(:moment AS BIGINT) THEN 0
            WHEN finished_at <= CAST(:moment AS BIGINT) - CAST(:hours AS BIGINT) * 3600000000 THEN CAST(:hours AS BIGINT)
            ELSE (CAST(:moment AS BIGINT) - finished_at) / 3600000000 END AS ago,
       count(*), min(finished_at), max(finished_at)
FROM (
  SELECT kind, died_code, died_class, finished_at FROM {p}job WHERE {matching} ORDER BY finished_at DESC LIMIT :cap
) AS few
GROUP BY 1, 2, 3, 4
