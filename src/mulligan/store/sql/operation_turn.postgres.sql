-- One worker at a time; who comes second passes by.
SELECT {operation} FROM {p}operation WHERE id = :id FOR UPDATE SKIP LOCKED
