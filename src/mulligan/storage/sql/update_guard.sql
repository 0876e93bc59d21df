-- Store a guard by compare-and-set on its version.
UPDATE {p}guard SET version = version + 1, active = :active, body = :body, updated_at = :now
WHERE scope = :scope AND key = :key AND version = :version RETURNING version
