UPDATE {p}batch_progress SET told = true WHERE id = :id AND NOT told RETURNING id
