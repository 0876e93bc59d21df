-- Count matching jobs by everything a preview of an operation shows, up to a cap.
SELECT kind, owner, queue, uses, state, died_code, died_group, count(*), sum(cost), CAST(sum(token) AS BIGINT), min(id)
FROM (
  SELECT id, kind, owner, queue, uses, state, died_code, died_group, cost, token FROM {p}job WHERE {matching} LIMIT :cap
) AS few
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 8 DESC
