-- List the next items of an operation to act on.
SELECT {item} FROM {p}operation_item
WHERE operation = :operation AND state = 'waiting' AND place <= :place ORDER BY place LIMIT :limit
