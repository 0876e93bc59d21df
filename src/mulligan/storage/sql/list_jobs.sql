-- Read a page of matching jobs, newest first.
SELECT {job} FROM {p}job
WHERE {matching} AND id < :before AND id >= :floor
ORDER BY id DESC LIMIT :limit
