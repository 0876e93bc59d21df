-- In the order of ids, in which everybody locks jobs.
SELECT {row} FROM {p}job WHERE batch_id = :id AND state = ANY (CAST(:states AS text[])) ORDER BY id FOR UPDATE
