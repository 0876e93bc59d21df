-- Delete old responses to requests with an Idempotency-Key.
DELETE FROM {p}answer WHERE (key_id, name) IN
  (SELECT key_id, name FROM {p}answer WHERE at < :before ORDER BY at LIMIT :limit)
RETURNING name
