-- List batches in order of id, for `doctor --verify`.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id > :after ORDER BY id LIMIT :limit
