DELETE FROM {p}batch_progress WHERE id = :id
