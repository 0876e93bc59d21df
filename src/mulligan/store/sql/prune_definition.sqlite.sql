DELETE FROM {p}batch WHERE id = :id RETURNING id
