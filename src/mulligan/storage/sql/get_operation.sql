-- Read one operation.
SELECT {operation} FROM {p}operation WHERE id = :id
