SELECT id FROM {p}batch WHERE unique_hash = :unique_hash
