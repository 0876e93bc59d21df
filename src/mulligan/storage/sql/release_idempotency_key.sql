-- Delete the claim of an idempotency key whose request failed without a response.
DELETE FROM {p}answer WHERE key_id = :key_id AND name = :name AND status IS NULL
