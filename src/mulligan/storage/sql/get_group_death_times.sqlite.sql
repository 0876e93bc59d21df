-- Find the first and the last death of each failure group.
SELECT wanted.name,
       (SELECT finished_at FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at LIMIT 1),
       (SELECT finished_at FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT 1)
FROM (SELECT value AS name FROM json_each(:names)) AS wanted
