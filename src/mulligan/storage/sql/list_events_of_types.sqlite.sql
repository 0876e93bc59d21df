-- Read events of some types in a range of ids, in order. Bundles that reach into it are included.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event
WHERE id > :cursor AND id < :upper AND id - COALESCE(bundle, 1) < :top AND type IN (SELECT value FROM json_each(:types)) ORDER BY id LIMIT :limit
