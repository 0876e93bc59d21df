SELECT request, status, body FROM {p}answer WHERE key_id = :key_id AND name = :name
