-- Delete the definition of a batch.
DELETE FROM {p}batch WHERE id = :id RETURNING id
