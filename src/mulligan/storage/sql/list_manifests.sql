-- List the stored manifests, newest first.
SELECT id, app, release, body, last_named FROM {p}manifest ORDER BY first_seen DESC, id
