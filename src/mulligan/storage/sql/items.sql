-- List the items of an operation, by state or outcome.
SELECT {item} FROM {p}operation_item
WHERE operation = :operation AND place > :after
  AND (CAST(:wanted AS TEXT) IS NULL OR state = :wanted OR outcome = :wanted)
ORDER BY place LIMIT :most
