-- List operations, newest first.
SELECT {operation} FROM {p}operation
WHERE (CAST(:scope AS TEXT) IS NULL OR scope = :scope) AND (CAST(:before AS TEXT) IS NULL OR id < :before)
ORDER BY id DESC LIMIT :limit
