-- Only the oldest ids are looked at: where none of them is old enough, no young ones are read.
DELETE FROM {p}event WHERE id IN (
  SELECT id FROM (SELECT id, at FROM {p}event ORDER BY id LIMIT :most) AS oldest WHERE at < :before) RETURNING id
