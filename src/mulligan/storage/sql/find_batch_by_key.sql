-- Find the batch that holds a unique key.
SELECT id FROM {p}batch WHERE unique_hash = :unique_hash
