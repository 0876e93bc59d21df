DELETE FROM {p}session WHERE expires_at < :before
