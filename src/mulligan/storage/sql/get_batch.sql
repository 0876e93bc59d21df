-- Read one batch.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id) WHERE id = :id
