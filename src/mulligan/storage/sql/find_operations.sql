-- Find operations whose id starts with a prefix.
SELECT id FROM {p}operation
WHERE id >= :prefix AND id < :upper AND (CAST(:scope AS TEXT) IS NULL OR scope = :scope) ORDER BY id LIMIT :limit
