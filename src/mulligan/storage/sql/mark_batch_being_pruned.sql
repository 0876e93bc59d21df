-- Mark a batch as being removed. From now on its members cannot be retried, as some may be gone.
UPDATE {p}batch_progress SET being_pruned = true WHERE id = :id
