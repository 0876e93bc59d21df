-- Lock and read the members of a batch that are in the given states.
-- ORDER BY id: all transactions lock jobs in this order, so they cannot deadlock.
SELECT {job} FROM {p}job WHERE batch_id = :id AND state = ANY (CAST(:states AS text[])) ORDER BY id FOR UPDATE
