-- Read the latest attempt of each job, or the latest that failed.
-- CROSS JOIN makes SQLite start from the ids; with IN it would scan all attempts.
SELECT {attempt} FROM json_each(:ids) AS wanted
CROSS JOIN {p}attempt ON job_id = wanted.value AND token = (
  SELECT other.token FROM {p}attempt AS other
  WHERE other.job_id = wanted.value AND (NOT :failed OR other.code IS NOT NULL)
  ORDER BY other.token DESC LIMIT 1)
UNION ALL {part:first_attempt_row} AND id IN (SELECT value FROM json_each(:ids)) AND NOT :failed
