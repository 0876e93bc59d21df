-- Read one job.
SELECT {job} FROM {p}job WHERE id = :id
