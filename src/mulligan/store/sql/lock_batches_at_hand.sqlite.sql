-- There is one writer: whoever is here holds them.
SELECT id FROM {p}batch_progress WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id
