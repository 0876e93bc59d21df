-- Locked until the end of the transaction. Nobody waits: who finds it in another hand leaves it there.
SELECT {reader} FROM {p}reader WHERE name = :name FOR UPDATE SKIP LOCKED
