-- List the failure groups of one owner with their newest death.
-- A recursive query probes the index once per group, however many jobs died.
WITH RECURSIVE named(name) AS (
  SELECT min(died_group) FROM {p}job WHERE state = 'dead' AND owner = :owner
  UNION ALL
  SELECT (SELECT min(died_group) FROM {p}job WHERE state = 'dead' AND owner = :owner AND died_group > named.name)
  FROM named WHERE named.name IS NOT NULL
), few AS (
  SELECT name FROM named WHERE name IS NOT NULL LIMIT :examined
)
SELECT name,
       (SELECT max(finished_at) FROM {p}job WHERE state = 'dead' AND owner = :owner AND died_group = name) AS last
FROM few ORDER BY last DESC, name LIMIT :limit
