-- Read the latest attempt of each job, or the latest that failed.
(
  SELECT DISTINCT ON (job_id) {attempt} FROM {p}attempt
  WHERE job_id = ANY (CAST(:ids AS text[])) AND (NOT CAST(:failed AS boolean) OR code IS NOT NULL)
  ORDER BY job_id, token DESC
)
UNION ALL {part:first_attempt_row} AND id = ANY (CAST(:ids AS text[])) AND NOT CAST(:failed AS boolean)
