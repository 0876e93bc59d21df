-- Read counted attempts of past jobs, job by job, for a backtest of rules.
-- Jobs that succeeded with their first attempt are left out: there is no failure to classify.
SELECT job.id, job.kind, job.uses, attempt.token, attempt.generation, attempt.ended, attempt.verb, attempt.code, attempt.cls,
       attempt.rule, attempt.judged, attempt.evidence, attempt.private, attempt.cost
FROM {p}job AS job JOIN {p}attempt AS attempt ON attempt.job_id = job.id
WHERE attempt.job_id >= :from_id AND (attempt.job_id, attempt.token) > (:from_id, :from_token)
  AND attempt.ended IN ('returned', 'failed', 'retry') AND attempt.verb <> 'hold'
  AND NOT (job.state = 'succeeded' AND (job.token = 1 OR job.succeeded_by IS NOT NULL))
  AND job.created_at >= :since AND job.kind NOT LIKE 'mulligan.%'
  AND (CAST(:kind AS TEXT) IS NULL OR job.kind = :kind)
ORDER BY attempt.job_id, attempt.token LIMIT :limit
