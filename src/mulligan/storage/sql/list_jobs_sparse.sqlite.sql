-- Read a page of matching jobs that will not be full, newest first.
-- The subquery reads rows forwards, in half the time, and sorts only the matches.
SELECT {job} FROM {p}job
WHERE id IN (SELECT id FROM {p}job WHERE {matching} AND id < :before AND id >= :floor)
ORDER BY id DESC LIMIT :limit
