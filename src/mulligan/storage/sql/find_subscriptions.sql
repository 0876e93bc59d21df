-- Find subscriptions whose id starts with a prefix.
SELECT id FROM {p}subscription WHERE id >= :prefix AND id < :beyond ORDER BY id LIMIT :most
