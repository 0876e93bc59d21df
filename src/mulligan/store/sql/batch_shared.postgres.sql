-- Shared by all who add members; who seals waits for them. Nobody who ends a member is concerned.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id = :id FOR SHARE OF definition
