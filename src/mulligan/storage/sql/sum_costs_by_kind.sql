-- Sum cost and attempts by kind over the newest jobs.
SELECT kind, sum(cost), CAST(sum(token) AS BIGINT) FROM (
  SELECT kind, cost, token FROM {p}job ORDER BY id DESC LIMIT :limit
) AS newest
GROUP BY 1
