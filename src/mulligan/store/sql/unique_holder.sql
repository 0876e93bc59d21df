SELECT id, payload, unique_until FROM {p}job WHERE unique_hash = :unique_hash
