-- Read one batch and lock its definition exclusively: no transaction may be adding members.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id = :id FOR UPDATE OF definition
