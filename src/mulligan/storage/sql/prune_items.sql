-- Delete items of operations that finished long ago.
DELETE FROM {p}operation_item WHERE (operation, place) IN (
  SELECT item.operation, item.place FROM {p}operation AS done
  JOIN {p}operation_item AS item ON item.operation = done.id
  WHERE NOT done.active AND done.finished_at < :before LIMIT :limit)
RETURNING 1
