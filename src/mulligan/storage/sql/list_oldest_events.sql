-- Read the oldest events above the pruned ones, to find out whether any is old enough.
SELECT id, at FROM {p}event WHERE id > :floor ORDER BY id LIMIT :limit
