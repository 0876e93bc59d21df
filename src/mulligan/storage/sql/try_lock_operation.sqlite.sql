-- Read one operation. SQLite has one writer, so there is nothing to lock.
SELECT {operation} FROM {p}operation WHERE id = :id
