-- Read one batch and lock its definition in shared mode, to add members.
-- Sealing waits for this lock. Ending a member does not: it locks batch_progress only.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id = :id FOR SHARE OF definition
