-- Delete guards that restrict nothing and were not updated for long.
DELETE FROM {p}guard WHERE NOT active AND updated_at < :before RETURNING key
