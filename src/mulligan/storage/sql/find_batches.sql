-- Find batches whose id starts with a prefix.
SELECT id FROM {p}batch WHERE substr(id, 1, CAST(:length AS INTEGER)) = :prefix ORDER BY id LIMIT :limit
