DELETE FROM {p}event WHERE id IN (SELECT id FROM {p}event WHERE at < :before ORDER BY id LIMIT :most) RETURNING id
