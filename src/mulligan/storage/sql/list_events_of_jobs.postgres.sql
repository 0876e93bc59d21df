-- Read the events of jobs: single events by job, bundles by the times at which the jobs changed.
WITH moments AS MATERIALIZED (
  SELECT created_at AS at FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
  UNION SELECT started_at FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
  UNION SELECT finished_at FROM {p}job WHERE id = ANY (CAST(:ids AS text[]))
  UNION SELECT started_at FROM {p}attempt WHERE job_id = ANY (CAST(:ids AS text[]))
  UNION SELECT ended_at FROM {p}attempt WHERE job_id = ANY (CAST(:ids AS text[]))
)
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE job_id = ANY (CAST(:ids AS text[]))
UNION ALL
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE bundle IS NOT NULL AND at = ANY (ARRAY(SELECT at FROM moments))
