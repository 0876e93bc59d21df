-- List the newest attempts that a rule classified, or would have classified while in shadow mode.
SELECT attempt.job_id, job.kind, attempt.attempt, attempt.code, attempt.cls, attempt.verb, attempt.ended_at, attempt.public
FROM {p}attempt AS attempt JOIN {p}job AS job ON job.id = attempt.job_id
WHERE attempt.job_id > :after AND attempt.ended_at >= :since AND job.kind NOT LIKE 'mulligan.%'
  AND (CAST(:kind AS TEXT) IS NULL OR job.kind = :kind)
  AND (attempt.rule = :rule OR CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,rule}' = :rule ELSE false END)
ORDER BY attempt.job_id DESC, attempt.token DESC LIMIT :limit
