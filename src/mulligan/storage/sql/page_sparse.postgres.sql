-- Read a page of matching jobs that will not be full, newest first.
SELECT {row} FROM {p}job
WHERE {matching} AND id < :before AND id >= :floor
ORDER BY id DESC LIMIT :most
