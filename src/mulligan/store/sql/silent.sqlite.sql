SELECT id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :most
