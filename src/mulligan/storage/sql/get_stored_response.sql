-- Read the stored response to an HTTP request with an Idempotency-Key.
SELECT request, status, body FROM {p}answer WHERE key_id = :key_id AND name = :name
