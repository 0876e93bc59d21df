-- Delete old events that are actions of people.
DELETE FROM {p}event WHERE id IN (
  SELECT id FROM (SELECT id, at FROM {p}event WHERE {part:by_people} ORDER BY id LIMIT :most) AS oldest
  WHERE at < :before) RETURNING id
