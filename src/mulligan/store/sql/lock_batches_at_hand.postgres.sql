SELECT id FROM {p}batch_progress WHERE id = ANY (CAST(:ids AS text[])) ORDER BY id FOR UPDATE SKIP LOCKED
