-- Those that let nobody in any more.
DELETE FROM {p}api_key WHERE COALESCE(revoked_at, expires_at) < :before
