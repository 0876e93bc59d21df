-- Renew a worker, and with it the leases of all its jobs. A closed worker is never reopened.
UPDATE {p}worker SET renewed_at = :now, renewed_mono = :mono, draining = :draining
WHERE id = :id AND closed_at IS NULL RETURNING drain_reason
