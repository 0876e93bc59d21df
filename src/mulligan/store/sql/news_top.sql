SELECT max(id) FROM (SELECT id FROM {p}event WHERE id > :cursor AND id <= :top ORDER BY id LIMIT :most) AS next
