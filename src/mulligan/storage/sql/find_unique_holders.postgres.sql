-- Find the jobs that hold unique keys.
SELECT unique_hash, id, payload, unique_until FROM {p}job WHERE unique_hash = ANY(CAST(:hashes AS text[]))
