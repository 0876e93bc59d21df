-- Delete the definition of a batch, unless a transaction that tried to add members still locks it.
DELETE FROM {p}batch WHERE id IN (SELECT id FROM {p}batch WHERE id = :id FOR UPDATE SKIP LOCKED) RETURNING id
