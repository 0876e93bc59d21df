-- Read the job of each failure group that died last.
SELECT wanted.name, {job} FROM (SELECT value AS name FROM json_each(:names)) AS wanted
CROSS JOIN {p}job ON id = (
  SELECT id FROM {p}job WHERE {matching} AND died_group = wanted.name ORDER BY finished_at DESC LIMIT 1)
