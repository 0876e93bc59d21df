-- Record that the event batch.sealed is written. No row: it was already.
UPDATE {p}batch_progress SET told = true WHERE id = :id AND NOT told RETURNING id
