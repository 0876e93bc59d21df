-- List the items of an operation, by state or outcome.
SELECT {item} FROM {p}operation_item
WHERE operation = :operation AND place > :after
  AND (CAST(:status AS TEXT) IS NULL OR state = :status OR outcome = :status)
ORDER BY place LIMIT :limit
