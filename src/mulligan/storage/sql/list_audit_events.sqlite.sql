-- List actions of people, newest first. The first condition must equal that of event_for_audit.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event
WHERE {part:is_audit_event}
  AND (CAST(:actor AS text) IS NULL OR actor = CAST(:actor AS text))
  AND (CAST(:owner AS text) IS NULL OR owner = CAST(:owner AS text))
  AND (CAST(:job_id AS text) IS NULL OR job_id = CAST(:job_id AS text))
  AND (CAST(:since AS bigint) IS NULL OR at >= CAST(:since AS bigint))
  AND (CAST(:until AS bigint) IS NULL OR at < CAST(:until AS bigint))
  AND (CAST(:before AS bigint) IS NULL OR id < CAST(:before AS bigint))
  AND (:all_types OR type IN (SELECT value FROM json_each(:types)))
ORDER BY id DESC LIMIT :limit
