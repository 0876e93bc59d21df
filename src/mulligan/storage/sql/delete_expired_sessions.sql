-- Delete expired sessions and sign-in links.
DELETE FROM {p}session WHERE expires_at < :before
