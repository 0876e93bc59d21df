-- Find the job that holds a unique key.
SELECT id, payload, unique_until FROM {p}job WHERE unique_hash = :unique_hash
