UPDATE {p}gate SET probe_at = :probe_at WHERE scope = :scope AND key = :key
