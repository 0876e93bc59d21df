-- Revoke an API key.
UPDATE {p}api_key SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL RETURNING {api_key}
