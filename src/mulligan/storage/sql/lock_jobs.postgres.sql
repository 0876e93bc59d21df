-- Lock and read jobs in order of id, the order in which all transactions lock. Skip locked jobs.
SELECT {job} FROM {p}job WHERE id = ANY (CAST(:ids AS text[])) ORDER BY id FOR UPDATE SKIP LOCKED
