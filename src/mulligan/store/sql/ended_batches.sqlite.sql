-- Sealed, without an outcome and without an unfinished member: one probe of an index for each state that is none.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id IN (SELECT value FROM json_each(:ids)) AND outcome IS NULL AND sealed_at IS NOT NULL AND {part:all_ended}
ORDER BY id
