-- Lock and read one operation. Waits for the worker that is processing it.
SELECT {operation} FROM {p}operation WHERE id = :id FOR UPDATE
