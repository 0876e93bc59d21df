-- Read events in a range of ids, in order.
-- A bundle covers `bundle` ids up to its own, so it is read if either end lies in the range.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event
WHERE id > :cursor AND id < :upper AND id - COALESCE(bundle, 1) < :top ORDER BY id LIMIT :limit
