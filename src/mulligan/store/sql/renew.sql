-- A closed row is never reopened.
UPDATE {p}worker SET renewed_at = :now, renewed_mono = :mono, draining = :draining
WHERE id = :id AND closed_at IS NULL RETURNING drain_reason
