-- Read the payloads of matching jobs, newest first.
SELECT id, payload FROM {p}job
WHERE {matching} AND id < :before AND id >= :floor
ORDER BY id DESC LIMIT :limit
