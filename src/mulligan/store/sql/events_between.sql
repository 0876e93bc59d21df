-- A bundle reaches back as far as it is long: what is taken lies in the stretch with one end at least.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event
WHERE id > :cursor AND id < :beyond AND id - COALESCE(bundle, 1) < :top ORDER BY id LIMIT :most
