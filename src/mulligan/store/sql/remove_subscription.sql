DELETE FROM {p}subscription WHERE id = :id RETURNING id
