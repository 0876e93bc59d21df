-- Count the items of an operation that failed again with the same cause, by code.
SELECT COALESCE(code, ''), count(*) FROM {p}operation_item
WHERE operation = :operation AND outcome = 'same' GROUP BY 1 ORDER BY 2 DESC, 1
