-- A page that will not be full: rows are read forwards, which takes half the time, and only what matches is sorted.
SELECT {row} FROM {p}job
WHERE id IN (SELECT id FROM {p}job WHERE {matching} AND id < :before AND id >= :floor)
ORDER BY id DESC LIMIT :most
