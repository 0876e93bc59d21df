-- The last of so many jobs, newest first, and one that comes after it if there is one.
SELECT id FROM {p}job WHERE {matching} AND id < :before ORDER BY id DESC LIMIT 2 OFFSET :skip
