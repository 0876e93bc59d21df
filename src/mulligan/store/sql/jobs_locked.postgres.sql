-- In the order of their ids, as everybody locks; those in another hand are passed by.
SELECT {row} FROM {p}job WHERE id = ANY (CAST(:ids AS text[])) ORDER BY id FOR UPDATE SKIP LOCKED
