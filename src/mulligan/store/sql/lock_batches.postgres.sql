-- In one order for everybody. What is asked about their members is asked in a later statement: it then sees all who
-- held these rows before.
SELECT id FROM {p}batch_progress WHERE id = ANY (CAST(:ids AS text[])) ORDER BY id FOR UPDATE
