-- Delete API keys that were revoked or expired long ago.
DELETE FROM {p}api_key WHERE COALESCE(revoked_at, expires_at) < :before
