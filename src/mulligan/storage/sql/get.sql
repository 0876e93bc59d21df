-- Read one job.
SELECT {row} FROM {p}job WHERE id = :id
