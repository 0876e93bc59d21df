-- Find jobs whose unique key starts with a prefix.
SELECT id FROM {p}job
WHERE unique_key IS NOT NULL AND unique_key >= :prefix AND unique_key < :upper ORDER BY unique_key LIMIT :limit
