-- Read the events of jobs: single events by job, bundles by the times at which the jobs changed.
WITH wanted (id) AS (SELECT value FROM json_each(:ids))
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE job_id IN (SELECT id FROM wanted)
UNION ALL
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event WHERE bundle IS NOT NULL AND at IN (
  SELECT created_at FROM {p}job WHERE id IN (SELECT id FROM wanted)
  UNION SELECT started_at FROM {p}job WHERE id IN (SELECT id FROM wanted)
  UNION SELECT finished_at FROM {p}job WHERE id IN (SELECT id FROM wanted)
  UNION SELECT started_at FROM {p}attempt WHERE job_id IN (SELECT id FROM wanted)
  UNION SELECT ended_at FROM {p}attempt WHERE job_id IN (SELECT id FROM wanted))
