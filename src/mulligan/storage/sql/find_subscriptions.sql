-- Find subscriptions whose id starts with a prefix.
SELECT id FROM {p}subscription WHERE id >= :prefix AND id < :upper ORDER BY id LIMIT :limit
