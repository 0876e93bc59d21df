DELETE FROM {p}meter WHERE scope = 'owner' AND at < :before
