-- Delete operations that finished long ago and have no items left.
DELETE FROM {p}operation WHERE NOT active AND finished_at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}operation_item AS item WHERE item.operation = {p}operation.id)
RETURNING 1
