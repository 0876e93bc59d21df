-- Store when the breaker probes a dependency next.
UPDATE {p}gate SET probe_at = :probe_at WHERE scope = :scope AND key = :key
