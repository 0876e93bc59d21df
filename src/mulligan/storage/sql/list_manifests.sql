-- List the stored manifests, newest first.
SELECT id, app, release, body, last_used_at FROM {p}manifest ORDER BY created_at DESC, id
