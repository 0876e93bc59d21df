-- Delete old events that are actions of people.
DELETE FROM {p}event WHERE id IN (
  SELECT id FROM (SELECT id, at FROM {p}event WHERE {part:is_audit_event} ORDER BY id LIMIT :limit) AS oldest
  WHERE at < :before) RETURNING id
