-- Record that the event batch.sealed is written. No row: it was already.
UPDATE {p}batch_progress SET sealed_event_written = true WHERE id = :id AND NOT sealed_event_written RETURNING id
