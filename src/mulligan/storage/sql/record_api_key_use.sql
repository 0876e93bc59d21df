-- Record that an API key was used.
UPDATE {p}api_key SET last_used_at = :now WHERE id = :id
