DELETE FROM {p}guard WHERE NOT active AND seen_at < :before RETURNING key
