-- Read a page of matching jobs that will not be full, newest first.
SELECT {job} FROM {p}job
WHERE {matching} AND id < :before AND id >= :floor
ORDER BY id DESC LIMIT :limit
