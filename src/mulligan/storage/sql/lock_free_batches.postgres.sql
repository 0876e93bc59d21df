-- Lock batches in order of id, and skip those that are locked.
SELECT id FROM {p}batch_progress WHERE id = ANY (CAST(:ids AS text[])) ORDER BY id FOR UPDATE SKIP LOCKED
