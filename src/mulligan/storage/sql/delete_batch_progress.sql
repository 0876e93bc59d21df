-- Delete the progress row of a batch.
DELETE FROM {p}batch_progress WHERE id = :id
