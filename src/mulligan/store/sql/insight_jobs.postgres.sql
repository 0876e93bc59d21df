SELECT created_at / 86400000000 AS day, state, COALESCE(CAST(error AS json) ->> 'class', '') AS cls, count(*)
FROM ({part:cohort}) AS cohort GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
