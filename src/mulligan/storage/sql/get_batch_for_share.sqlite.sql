-- Read one batch. SQLite has one writer, so there is nothing to lock.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id) WHERE id = :id
