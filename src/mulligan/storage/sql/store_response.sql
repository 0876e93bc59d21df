-- Store the response to an HTTP request with an Idempotency-Key.
UPDATE {p}answer SET status = :status, body = :body WHERE key_id = :key_id AND name = :name AND status IS NULL
