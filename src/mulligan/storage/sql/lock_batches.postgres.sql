-- Lock batches in order of id, so that transactions cannot deadlock.
-- Members are read by a later statement, which sees everything that earlier holders committed.
SELECT id FROM {p}batch_progress WHERE id = ANY (CAST(:ids AS text[])) ORDER BY id FOR UPDATE
