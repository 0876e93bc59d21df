-- Find jobs whose id starts with a prefix.
SELECT id FROM {p}job WHERE id >= :prefix AND id < :upper ORDER BY id LIMIT :limit
