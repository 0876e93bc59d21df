-- Select batches that are sealed, have no outcome and no unfinished member.
-- One index probe per unfinished state, however many members there are.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id = ANY (CAST(:ids AS text[])) AND outcome IS NULL AND sealed_at IS NOT NULL AND {part:all_members_ended}
ORDER BY id
