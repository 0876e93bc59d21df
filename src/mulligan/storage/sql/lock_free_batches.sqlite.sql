-- Read batches. SQLite has one writer, which holds them already.
SELECT id FROM {p}batch_progress WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id
