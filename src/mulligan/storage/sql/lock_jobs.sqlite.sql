-- Read jobs by id. SQLite has one writer, so there is nothing to lock.
SELECT {job} FROM {p}job WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id
