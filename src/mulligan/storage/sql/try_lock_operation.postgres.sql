-- Lock and read one operation, or return no row if another worker is processing it.
SELECT {operation} FROM {p}operation WHERE id = :id FOR UPDATE SKIP LOCKED
