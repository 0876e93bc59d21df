SELECT {attempt} FROM {p}attempt
WHERE (job_id, token) IN (
  SELECT job_id, max(token) FROM {p}attempt
  WHERE job_id IN (SELECT value FROM json_each(:ids)) AND (NOT :failed OR code IS NOT NULL) GROUP BY job_id)
